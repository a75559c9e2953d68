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

/// Chooses among several ways to compute a GEMM by measuring them, when a shape first comes outside
/// of a graph's capture, and keeps the choice. Nearby numbers of tokens share one (shape_bucket.h).
class Autotuner {
 public:
  /// `wait` waits for an event of the stream; it may throw.
  Autotuner(Launch where, std::function<void(cudaEvent_t)> wait);
  ~Autotuner();
  Autotuner(const Autotuner&) = delete;

  /// What is chosen, and for which out [T, n] = x [T, k] w [n, k]^T.
  using Key = std::tuple<int /*operation*/, int64_t /*bucket of T*/, int64_t /*n*/, int64_t /*k*/,
                         DType /*of x*/, DType /*of out*/>;
  static Key key(int operation, Tensor out, Tensor x, Tensor w);

  /// The fastest of `num_candidates`, from 0; 0 where a capture is under way and nothing is known.
  /// run(candidate) enqueues one and may be called any number of times.
  int choose(int operation, Tensor out, Tensor x, Tensor w, int num_candidates, bool capturing,
             const std::function<void(int)>& run);
  /// The same, measured now and not kept.
  int measure(int num_candidates, int64_t num_tokens, const std::function<void(int)>& run);

 private:
  struct Choice {
    int candidate = 0;
    int64_t num_tokens = 0;  ///< that it was measured with
  };
  /// Milliseconds that `num_runs` runs take, each with cold weights and between other kernels.
  double timed(int num_runs, const std::function<void()>& enqueue);

  Launch where_;
  std::function<void(cudaEvent_t)> wait_;
  void* flush_ = nullptr;
  std::array<cudaEvent_t, 2> events_ = {};
  std::map<Key, Choice> choices_;
};

}  // namespace nanovllm::cuda
