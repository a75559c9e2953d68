#pragma once

#include <cstdint>

#include "nanovllm/base/tensor.h"

namespace nanovllm {

/// The residual stream of a forward pass, [T, hidden], to which every block of a layer adds. A
/// backend may leave an addition unfinished until the norm that follows, since on several ranks one
/// kernel then does both. So a residual is no Tensor: what takes a Tensor does not take it, whole()
/// fails unless every addition is finished, and Backend's operations on a Residual finish it as far
/// as they need.
class Residual {
 public:
  /// Over memory of the caller, both [T, hidden] in the model's dtype: `sum` is the residual now,
  /// on every rank; a norm of it will be in `scratch`.
  Residual(Tensor sum, Tensor scratch) : sum_(sum), scratch_(scratch) {}
  Residual(const Residual&) = delete;
  Residual(Residual&&) = default;
  Residual& operator=(Residual&&) = default;

  int64_t num_tokens() const { return sum_.shape[0]; }
  /// The residual; throws unless it is whole, which Backend::finish() makes it.
  Tensor whole() const;
  /// Tokens [first, first + count) of a whole one, in the same memory.
  Residual rows(int64_t first, int64_t count) const {
    return {whole().rows(first, count), scratch_.rows(first, count)};
  }

  // -- for backends alone
  enum class State {
    kWhole,    ///< sum() is the residual
    kPartial,  ///< the residual is the ranks' sum(), added up
    kUnadded,  ///< the residual is sum() and the ranks' scratch(), added up
    kOwnRows,  ///< sum() is the residual in the rows that are this rank's, and nothing in others
  };
  State state = State::kWhole;
  /// Not 0: the backend has begun the next norm under this number.
  uint64_t begun_norm = 0;
  const Tensor& sum() const { return sum_; }
  const Tensor& scratch() const { return scratch_; }

 private:
  Tensor sum_, scratch_;
};

}  // namespace nanovllm
