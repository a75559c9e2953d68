#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "nanovllm/base/ceil_div.h"
#include "nanovllm/engine/scheduler.h"
#include "nanovllm/runtime/step_io.h"
#include "nanovllm/text/mask_pool.h"

namespace nanovllm {

/// Writes a plan as the flat input of its step, with only what changed since the last step. It gets
/// each plan, in order, before the plan's sequences change; and again after std::bad_alloc.
class BatchBuilder {
 public:
  explicit BatchBuilder(int64_t vocab_size) : num_mask_words_(ceil_div(vocab_size, 32)) {}

  /// The view is valid until the next call. Without lists the step needs little memory, and draws
  /// any token for a sequence whose parameters have lists.
  StepInput build(const StepPlan& plan, bool with_lists = true);
  /// The late part of the step: what may be drawn for the plan's outputs with a constraint, whose
  /// sequences know all tokens before. The view is valid until the next call of either.
  StepInput build_late(const StepPlan& plan);

 private:
  void add_setup(const Sequence& seq, bool with_lists);

  int64_t num_mask_words_;
  StepArrays arrays_;
  std::vector<uint64_t> lists_;  // of each slot: the RequestParams whose lists it has; 0: none
  std::vector<std::byte> buffer_, late_buffer_;
  std::vector<const Constraint*> constraints_;  // of the late part
  MaskPool pool_;
};

}  // namespace nanovllm
