#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <tuple>

#include "nanovllm/base/tensor.h"
#include "nanovllm/ops/backend.h"
#include "nanovllm/ops/cuda/device/runtime.h"

namespace nanovllm::cuda {

/// Measures the candidates for a GEMM (kernels, tile configurations, cuBLASLt's algorithms) when a
/// shape is first used outside of a graph capture, and remembers the fastest one. Similar numbers
/// of tokens share a choice (shape_bucket.h).
class Autotuner {
 public:
  /// `wait` waits for an event of the stream; it may throw.
  Autotuner(Launch where, std::function<void(cudaEvent_t)> wait);
  ~Autotuner();
  Autotuner(const Autotuner&) = delete;

  /// A choice is kept for each kind of choice and each GEMM out [T, n] = x [T, k] w [n, k]^T.
  using Key = std::tuple<int /*operation*/, int64_t /*bucket of T*/, int64_t /*n*/, int64_t /*k*/,
                         DType /*of x*/, DType /*of out*/>;
  static Key key(int operation, Tensor out, Tensor x, Tensor w);

  /// The number of the fastest of `num_candidates`. While a graph is captured nothing can be
  /// measured; then it is 0 unless the choice is known. run(candidate) enqueues a candidate and is
  /// called many times.
  int choose(int operation, Tensor out, Tensor x, Tensor w, int num_candidates,
             const std::function<void(int)>& run);
  /// Measures the candidates now and does not remember the result.
  int measure(int num_candidates, int64_t num_tokens, const std::function<void(int)>& run);
  /// Whether a graph is being captured.
  bool is_capturing() const;

 private:
  struct Choice {
    int candidate = 0;
    int64_t num_tokens = 0;  ///< with which it was measured; 0: it was not
  };
  /// The sum of the milliseconds that `num_runs` runs take, each with cold weights and between
  /// other kernels, as in a step.
  double time_of(int num_runs, const std::function<void()>& enqueue);

  Launch where_;
  std::function<void(cudaEvent_t)> wait_;
  void* flush_ = nullptr;
  std::array<cudaEvent_t, 2> events_ = {};
  std::map<Key, Choice> choices_;
};

}  // namespace nanovllm::cuda
