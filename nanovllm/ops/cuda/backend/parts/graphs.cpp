#include "nanovllm/ops/cuda/backend/parts/graphs.h"

namespace nanovllm::cuda {

void Graphs::replay(const GraphKey& key, const std::function<void()>& enqueue) {
  if (num_replaced_ != device_.num_replaced) forget();
  const auto at = graphs_.find(key);
  if (at != graphs_.end()) {
    if (!only_captures_) cuda_check(cudaGraphLaunch(at->second, device_.where.stream), "graph");
    return;
  }
  if (!only_captures_) enqueue();
  graphs_[key] = capture(enqueue);
}

cudaGraphExec_t Graphs::capture(const std::function<void()>& enqueue) {
  const cudaStream_t stream = device_.where.stream;
  cuda_check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "graph");
  is_capturing_ = true;
  cudaGraph_t graph = nullptr;
  try {
    enqueue();
  } catch (...) {
    is_capturing_ = false;
    cudaStreamEndCapture(stream, &graph);
    cudaGraphDestroy(graph);
    throw;
  }
  is_capturing_ = false;
  cuda_check(cudaStreamEndCapture(stream, &graph), "graph");
  cudaGraphExec_t ready = nullptr;
  const cudaError_t error = cudaGraphInstantiate(&ready, graph, 0);
  cudaGraphDestroy(graph);
  cuda_check(error, "graph");
  return ready;
}

void Graphs::forget() {
  for (auto& [key, graph] : graphs_) cudaGraphExecDestroy(graph);
  graphs_.clear();
  num_replaced_ = device_.num_replaced;
}

}  // namespace nanovllm::cuda
