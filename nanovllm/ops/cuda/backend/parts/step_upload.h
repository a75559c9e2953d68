#pragma once

#include <array>
#include <cstdint>

#include "nanovllm/ops/backend.h"
#include "nanovllm/ops/cuda/backend/parts/attention_plan.h"
#include "nanovllm/ops/cuda/backend/parts/device.h"
#include "nanovllm/ops/cuda/backend/parts/step_sampler.h"

namespace nanovllm::cuda {

/// Brings the first part of a step to the device, in one buffer that the first kernel of the step
/// reads from host memory, and provides the memory of the second part, which that kernel derives.
class StepUpload {
 public:
  explicit StepUpload(Device& device) : device_(device) {
    for (Growing& buffer : pinned_) buffer.pinned = true;
  }
  /// Everything else about the step was planned.
  void publish(Step& step, const KvCache& kv, StepSampler& sampler, const AttentionPlan& plan);

 private:
  Device& device_;
  std::array<Growing, kNumSteps> pinned_;
  std::array<Event, kNumSteps> sent_;
  uint64_t num_begun_ = 0;
  Growing input_{.in_graphs = true}, derived_{.in_graphs = true};
};

}  // namespace nanovllm::cuda
