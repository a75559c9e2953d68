#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <vector>

#include "nanovllm/ops/cuda/device/runtime.h"
#include "nanovllm/ops/cuda/tuning/gemm_choices.h"

namespace nanovllm::cuda {

/// Chooses how each GEMM is computed, and remembers that. The candidates come in the order of a
/// cost model. While an engine starts (Backend::prepare()), they are measured; a GEMM that was not
/// measured then uses the first one, so no request ever waits for a measurement.
class Autotuner {
 public:
  /// `wait` waits for an event of the stream; it may throw.
  Autotuner(Launch where, std::function<void(cudaEvent_t)> wait);
  ~Autotuner();
  Autotuner(const Autotuner&) = delete;

  /// While this is on, a GEMM is measured unless its choice was already measured with as many
  /// tokens: what is best for them may be impossible or slow for more. If there is no memory to
  /// measure with, nothing is measured.
  void set_measuring(bool on);
  /// The choice for a GEMM of `num_tokens` tokens. candidates() is called if it is not known; it
  /// returns at least one. run(candidate) enqueues the GEMM and may be called many times; it
  /// replaces a candidate that does not compute the GEMM.
  GemmChoice choose(const GemmChoices::Key& key, int64_t num_tokens,
                    const std::function<std::vector<GemmChoice>()>& candidates,
                    const std::function<void(GemmChoice&)>& run);

  GemmChoices& choices() { return choices_; }
  const GemmChoices& choices() const { return choices_; }

 private:
  GemmChoice measure(std::vector<GemmChoice> candidates, int64_t num_tokens,
                     const std::function<void(GemmChoice&)>& run);
  /// The milliseconds that a run takes with cold weights and between other kernels, as in a step.
  double time_of(const std::function<void()>& enqueue);

  Launch where_;
  std::function<void(cudaEvent_t)> wait_;
  void* flush_ = nullptr;  // allocated only while GEMMs are measured
  std::array<cudaEvent_t, 2> events_ = {};
  GemmChoices choices_;
};

}  // namespace nanovllm::cuda
