#pragma once

#include <cstdint>

#include "nanovllm/ops/batch.h"
#include "nanovllm/ops/cuda/attention/attention.h"
#include "nanovllm/ops/cuda/device/runtime.h"
#include "nanovllm/ops/cuda/sampling/sampler.h"

// The first kernel of a step, which brings the step's arrays to the device.
namespace nanovllm::cuda {

struct BeginStepParams {
  // The step's arrays in the host's pinned memory, a multiple of 16 bytes, and their place on the
  // device. The kernel copies them itself: a copy engine takes longer to start than the few
  // kilobytes take.
  const void* input;
  void* to;
  int input_bytes;
  DrawnRow *drawn, **drawn_at;  // *drawn_at = drawn, from where the sampler's kernels read it
  // These lie in `to` or are older than the step.
  const BlockUpdate* updates;                              // [num_updates]
  int32_t* block_tables;                                   // [max_num_seqs, max_blocks]
  const int32_t* last_tokens;                              // [max_num_seqs]
  int32_t* input_ids;                                      // [T]
  const int32_t *cu_seqlens_q, *context_lens, *seq_slots;  // [S + 1], [S], [S]
  DecodePlan plan;
  int num_updates, max_blocks, block_size, num_seqs, num_kv_heads;
  bool is_even;  // as in DecodeSplits::of()
};
/// Copies the input, applies the block updates, replaces ids that are kTokenInFlight by their
/// slot's last token, and plans decode attention.
void begin_step(Launch where, const BeginStepParams& params);

/// Whether the kernels were compiled for compute capability 9.0 or later, so that begin_kernel()
/// waits. GPUs newer than Hopper may run the driver's translation of the code for 8.0.
bool has_dependent_launch();

}  // namespace nanovllm::cuda
