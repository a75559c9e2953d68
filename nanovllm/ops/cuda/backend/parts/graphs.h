#pragma once

#include <cuda_runtime.h>

#include <compare>
#include <cstdint>
#include <functional>
#include <map>

#include "nanovllm/ops/cuda/backend/parts/device.h"

namespace nanovllm::cuda {

/// What determines which kernels a decode step runs, and with which parameters.
struct GraphKey {
  int64_t num_rows;
  int decode_cluster;  ///< as AttentionPlan says
  bool draws_in_gemm;  ///< as Sampler says
  auto operator<=>(const GraphKey&) const = default;
};

/// The captured decode steps, each launched as one graph instead of hundreds of kernels.
class Graphs {
 public:
  explicit Graphs(Device& device) : device_(device) {}
  ~Graphs() { forget(); }
  Graphs(const Graphs&) = delete;

  /// Runs the work of `enqueue`. The first time it does so without a graph, and captures one while
  /// the GPU is busy with the step.
  void replay(const GraphKey& key, const std::function<void()>& enqueue);
  /// While this is set, replay() captures the graphs that are missing, and launches nothing.
  void only_capture(bool on) { only_captures_ = on; }
  bool is_capturing() const { return is_capturing_; }
  size_t count() const { return graphs_.size(); }

 private:
  cudaGraphExec_t capture(const std::function<void()>& enqueue);
  void forget();

  Device& device_;
  std::map<GraphKey, cudaGraphExec_t> graphs_;
  uint64_t num_replaced_ = 0;  // Device::num_replaced when they were captured
  bool only_captures_ = false, is_capturing_ = false;
};

}  // namespace nanovllm::cuda
