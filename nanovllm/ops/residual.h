#pragma once

#include <cstdint>
#include <optional>

#include "nanovllm/base/tensor.h"

namespace nanovllm {

/// The residual stream of a forward pass, [T, hidden], to which attention and MLP of every layer
/// add. A backend may leave an addition unfinished until the next norm, because with several ranks
/// one kernel can then do the all-reduce, the addition and the norm. This is the rule
/// order.residual: a Residual does not convert to a Tensor, whole() throws unless every addition is
/// finished, and the operations of Backend on a Residual finish it as far as they need.
class Residual {
 public:
  /// Uses two tensors of the caller, both [T, hidden] in the model's dtype. `sum` is the residual
  /// at the start, on every rank; norms of it are written to `scratch`.
  Residual(Tensor sum, Tensor scratch) : sum_(sum), scratch_(scratch) {}
  Residual(const Residual&) = delete;
  Residual(Residual&&) = default;
  Residual& operator=(Residual&&) = default;

  int64_t num_tokens() const { return sum_.shape[0]; }
  /// The residual. Throws if an addition is unfinished; Backend::finish() finishes it.
  Tensor whole() const;
  /// Tokens [first, first + count) of a residual without unfinished additions, in the same memory.
  Residual rows(int64_t first, int64_t count) const {
    return {whole().rows(first, count), scratch_.rows(first, count)};
  }

  // -- only for backends
  enum class State {
    kWhole,    ///< sum() is the residual
    kPartial,  ///< the residual is the all-reduce of sum() over the ranks
    kSent,     ///< as kPartial, but the all-reduce has begun, and sum() is undefined
    kUnadded,  ///< the residual is sum() plus the all-reduce of scratch() over the ranks
    kOwnRows,  ///< sum() is the residual in this rank's own rows only; its other rows are undefined
  };
  State state = State::kWhole;
  /// A norm that the GEMM which added last has begun: scratch() is sum() times the weight, and
  /// `squares` has the sums of squares of sum()'s rows, in a layout of the backend.
  struct BegunNorm {
    Tensor weight, squares;
  };
  std::optional<BegunNorm> begun_norm;
  const Tensor& sum() const { return sum_; }
  const Tensor& scratch() const { return scratch_; }

 private:
  Tensor sum_, scratch_;
};

}  // namespace nanovllm
