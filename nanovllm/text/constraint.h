#pragma once

#include <cstdint>
#include <memory>
#include <span>

namespace nanovllm {

/// What the form of one answer allows, after the tokens that it has so far.
class Constraint {
 public:
  virtual ~Constraint() = default;
  /// Appends a token to the answer.
  virtual void accept(int32_t id) = 0;
  /// Writes which tokens may come next: bit id % 32 of bits[id / 32].
  virtual void fill(std::span<int32_t> bits) const = 0;
};

}  // namespace nanovllm
