#pragma once

#include <cstdint>

#include "nanovllm/ops/backend.h"
#include "nanovllm/ops/cuda/attention/decode_splits.h"
#include "nanovllm/ops/cuda/attention/kv_layout.cuh"
#include "nanovllm/ops/cuda/device/runtime.h"

namespace nanovllm::cuda {

/// backend.h's attention as the kernels see it.
struct AttentionParams {
  void* out;                    // [T, num_heads * head_dim]
  const void* qkv;              // [T, (num_heads + 2 num_kv_heads) * head_dim], q first
  void *k, *v;                  // the layer's entries, as KvLayout has them
  const int32_t* block_tables;  // [max_num_seqs, max_blocks]
  const int32_t *seq_slots, *cu_seqlens_q, *context_lens;  // [S], [S + 1], [S]
  KvLayout layout;
  int num_seqs, num_tokens, num_heads, max_blocks;
  float scale;
};

/// Where a block of decode attention begins.
struct alignas(16) DecodeStart {
  int32_t seq, head, tile;       // of the head's keys
  int32_t context, slot, token;  // of the sequence: its keys, its row of block_tables, of T
  int32_t block;                 // of the cache, with the tile's first key
  int32_t position;              // of the tile in the row of all
};

/// How a step's decode attention is spread over the multiprocessors, made once a step and used by
/// every layer. The keys of a sequence are cut into tiles of kDecodeTile; all tiles of all KV heads
/// of all sequences with one new token stand in a row, of which each block takes a piece.
struct DecodePlan {
  DecodeStart* starts;  // [num_blocks + 1]; of the last one the position alone
  int32_t* first_tile;  // [S + 1] where a sequence's tiles begin; the last entry is their number
  DecodeSplits* cuts;
  int num_blocks;  // of the grid
};

/// Memory that decode attention keeps between its blocks; counters are zero between launches.
struct DecodeScratch {
  // [num_blocks, 2, 16, head_dim + 2] sums, then maximum and sum of weights, of the head that goes
  // on in the block and of the one that begins there.
  float* partial;
  int32_t* counters;  // [S, num_kv_heads]
};
/// Floats of DecodeScratch::partial.
int64_t decode_partial_size(int num_blocks, int head_dim);

struct DecodeOptions {
  bool portable = false;  ///< keeps to instructions that 8.0 has
  /// No key but each sequence's last is written in this step: the others may be read before the
  /// kernel ahead ends.
  bool old_keys = false;
};
/// Sequences with one new token, tiled layout, up to 16 query heads for a KV head.
void decode_attention(Launch where, const AttentionParams& params, const DecodePlan& plan,
                      const DecodeScratch& scratch, DType dtype, DecodeOptions options);

/// Decode attention that takes qkv as the product left it, and stores k and v.
struct RopedDecodeParams {
  AttentionParams attention;
  const float *q_norm, *k_norm;  // [head_dim] or null
  const float *cos, *sin;        // [positions, head_dim / 2]
  const int32_t* slot_mapping;   // [T]
  float eps;
  bool old_keys;  // as in DecodeOptions
};
/// The blocks that share a KV head's keys in roped_decode_attention; 0: decode_attention is the
/// better one. It takes up to 8 query heads for a KV head. Each of the sequences has one new token;
/// `num_keys` of all, `longest` of one.
int decode_cluster_size(Launch where, const KvLayout& layout, int num_seqs, int64_t num_keys,
                        int64_t longest);
/// On Hopper. Norm, rotation and store of the newest key, and attention, for few sequences.
void roped_decode_attention(Launch where, RopedDecodeParams params, DType dtype, int num_parts);
/// Sequences with more than one new token, tiled layout; on any GPU.
void prefill_attention(Launch where, const AttentionParams& params, DType dtype);
/// The same on Hopper. `counters` [kPrefillCounters] are zero between launches.
void prefill_attention_sm90(Launch where, const AttentionParams& params, int32_t* counters,
                            DType dtype);
inline constexpr int kPrefillCounters = 2;
/// All sequences, any layout and dtype; slow.
void general_attention(Launch where, const AttentionParams& params, DType dtype);

}  // namespace nanovllm::cuda
