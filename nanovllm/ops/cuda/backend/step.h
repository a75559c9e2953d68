#pragma once

#include <cstdint>

#include "nanovllm/ops/batch.h"
#include "nanovllm/ops/cuda/attention/attention.h"
#include "nanovllm/ops/cuda/device/runtime.h"
#include "nanovllm/ops/cuda/sampling/sampler.h"

namespace nanovllm::cuda {

/// What begins a step on the device.
struct BeginStepParams {
  // The step's arrays in the host's pinned memory, a multiple of 16 bytes, and where they shall be:
  // the kernel copies them, since a copy engine takes longer to begin than the few kilobytes take.
  const void* input;
  void* to;
  int input_bytes;
  DrawnRow *drawn, **drawn_at;  // where this step's rows go, and where SampleParams looks that up
  // All in `to` or older.
  const BlockUpdate* updates;                              // [num_updates]
  int32_t* block_tables;                                   // [max_num_seqs, max_blocks]
  const int32_t* last_tokens;                              // [max_num_seqs]
  int32_t* input_ids;                                      // [T]
  const int32_t *cu_seqlens_q, *context_lens, *seq_slots;  // [S + 1], [S], [S]
  DecodePlan plan;
  int num_updates, max_blocks, block_size, num_seqs, num_kv_heads;
  bool is_even;  // sequences with one new token differ by a tile of keys at most
};
/// Applies the block updates, puts the tokens in flight in their places, plans decode attention.
void begin_step(Launch where, const BeginStepParams& params);

/// Whether the kernels were compiled for 9.0 or later, so that begin_kernel() waits. Newer GPUs may
/// run the driver's translation of 8.0's.
bool has_dependent_launch();

}  // namespace nanovllm::cuda
