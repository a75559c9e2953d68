#pragma once

#include <cstdint>

#include "nanovllm/ops/backend.h"
#include "nanovllm/ops/cuda/kv_layout.cuh"
#include "nanovllm/ops/cuda/runtime.h"

namespace nanovllm::cuda {

/// backend.h's attention as the kernels see it.
struct AttentionParams {
  void* out;            // [T, num_heads * head_dim]
  const void* qkv;      // [T, (num_heads + 2 num_kv_heads) * head_dim], q first
  const void *k, *v;    // the layer's entries, as KvLayout has them
  const int32_t* block_tables;                              // [max_num_seqs, max_blocks]
  const int32_t *seq_slots, *cu_seqlens_q, *context_lens;  // [S], [S + 1], [S]
  KvLayout layout;
  int num_seqs, num_tokens, num_heads, max_blocks;
  float scale;
};

/// How a step's decode attention is spread over the multiprocessors, made once a step and used by
/// every layer. The keys of a sequence are cut into tiles of kDecodeTile; all tiles of all KV heads
/// of all sequences with one new token stand in a row, and each block takes an equal piece of it.
inline constexpr int kDecodeTile = 64;
struct DecodePlan {
  int32_t* first_tile;  // [S + 1] where a sequence's tiles begin; the last entry is their number
  int32_t* first_seq;   // [num_blocks] sequence of a block's first tile
  int num_blocks;       // of the grid
};

/// Memory that decode attention keeps between its blocks; counters are zero between launches.
struct DecodeScratch {
  float* partial;     // [2 num_blocks, 16, head_dim + 2] sums, then maximum and sum of weights
  int32_t* counters;  // [S, num_kv_heads]
};
/// Floats of DecodeScratch::partial.
int64_t decode_partial_size(int num_blocks, int head_dim);

/// Sequences with one new token, tiled layout, up to 16 query heads for a KV head. `portable` keeps
/// to instructions that 8.0 has.
void decode_attention(Launch where, const AttentionParams& params, const DecodePlan& plan,
                      const DecodeScratch& scratch, DType dtype, bool portable);
/// Sequences with more than one new token, tiled layout.
void prefill_attention(Launch where, const AttentionParams& params, DType dtype);
/// All sequences, any layout and dtype; slow.
void general_attention(Launch where, const AttentionParams& params, DType dtype);

}  // namespace nanovllm::cuda
