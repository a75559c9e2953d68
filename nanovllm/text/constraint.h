#pragma once

#include <cstdint>
#include <memory>
#include <span>

namespace nanovllm {

namespace grammar {
class Grammar;
}

/// What the form of one answer allows, after the tokens that it has so far. Each answer has its
/// own.
class Constraint {
 public:
  virtual ~Constraint() = default;
  /// Appends a token to the answer. A token that is not allowed leaves none that is.
  virtual void accept(int32_t id) = 0;
  /// Writes which tokens may come next: bit id % 32 of bits[id / 32]. Different answers may be
  /// asked at once.
  virtual void fill(std::span<int32_t> bits) const = 0;
  /// Whether the answer is complete and nothing can follow, so that it need not draw an end token.
  virtual bool is_done() const { return false; }
};

}  // namespace nanovllm
