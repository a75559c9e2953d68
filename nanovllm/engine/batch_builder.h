#pragma once

#include <cstddef>
#include <vector>

#include "nanovllm/engine/scheduler.h"
#include "nanovllm/runtime/step_io.h"

namespace nanovllm {

/// Writes a plan as the flat input of its step, with only what changed since the last step. It is
/// called once for each plan, in order and before the plan's sequences change.
class BatchBuilder {
 public:
  /// The view is valid until the next call.
  StepInput build(const StepPlan& plan);

 private:
  StepArrays arrays_;
  std::vector<std::byte> buffer_;
};

}  // namespace nanovllm
