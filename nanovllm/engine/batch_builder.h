#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "nanovllm/engine/scheduler.h"
#include "nanovllm/runtime/step_io.h"

namespace nanovllm {

/// Writes a plan as the flat input of its step, with only what changed since the last step. It is
/// called for each plan in order and before the plan's sequences change, and again after
/// std::bad_alloc.
class BatchBuilder {
 public:
  /// The view is valid until the next call. Without lists the step needs little memory, and draws
  /// any token for a sequence whose parameters have lists.
  StepInput build(const StepPlan& plan, bool with_lists = true);

 private:
  void add_setup(const Sequence& seq, bool with_lists);

  StepArrays arrays_;
  std::vector<uint64_t> lists_;  // of each slot: the RequestParams whose lists it has; 0: none
  std::vector<std::byte> buffer_;
};

}  // namespace nanovllm
