#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <span>

#include "nanovllm/text/constraint.h"

namespace nanovllm::testing {

/// Allows the tokens whose last digit is that of the number of tokens so far.
class DigitConstraint : public Constraint {
 public:
  void accept(int32_t id) override {
    EXPECT_EQ(id % 10, length_ % 10);
    ++length_;
  }
  void fill(std::span<int32_t> bits) const override {
    std::ranges::fill(bits, 0);
    for (int32_t id = length_ % 10; id < std::ssize(bits) * 32; id += 10)
      bits[static_cast<size_t>(id / 32)] |= static_cast<int32_t>(1U << (id % 32));
  }

 private:
  int32_t length_ = 0;
};

}  // namespace nanovllm::testing
