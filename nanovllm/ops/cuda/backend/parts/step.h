#pragma once

#include <cstdint>

#include "nanovllm/ops/cuda/attention/attention.h"
#include "nanovllm/ops/cuda/device/runtime.h"
#include "nanovllm/ops/cuda/sampling/sampler.h"
#include "nanovllm/ops/step.h"

// The first kernel of a step: it copies what the host has written, and derives the rest of a Step.
namespace nanovllm::cuda {

struct BeginStepParams {
  // The step's arrays in pinned host memory, whose size is a multiple of 16 bytes, and their
  // address on the device. The kernel copies them itself, because starting a copy engine of the GPU
  // would take longer than copying these few kilobytes.
  const void* input;
  void* to;
  int input_bytes;
  DrawnRow *drawn, **drawn_at;  // stores *drawn_at = drawn; the sampler's kernels read it there
  // These point into `to`.
  const StepRow* rows;         // [S]
  const OutputPlace* outputs;  // [N]
  const BlockUpdate* updates;  // [num_updates]
  int32_t* input_ids;          // [T]
  // Kept from step to step.
  int32_t* block_tables;       // [max_num_seqs, max_blocks]
  const int32_t* last_tokens;  // [max_num_seqs]
  // Derived; as in Step.
  int32_t *positions, *slot_mapping, *cu_seqlens_q, *context_lens, *seq_slots, *output_rows;
  DecodePlan plan;
  int num_tokens, num_seqs, num_outputs, num_updates, max_blocks, block_size, num_kv_heads;
  bool is_even;  // as in DecodeSplits::of()
};
/// Copies the input, applies the block updates, derives the second part of the Step (derive() in
/// ops/step.h says how), and computes the plan of decode attention. Throws if `input_bytes` is not
/// a multiple of 16.
void begin_step(Launch where, const BeginStepParams& params);

/// Whether the kernels were compiled for compute capability 9.0 or later, so that they support
/// programmatic dependent launch. GPUs newer than Hopper may run PTX for 8.0 that the driver
/// compiled.
bool has_dependent_launch();

}  // namespace nanovllm::cuda
