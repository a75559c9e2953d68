#pragma once

#include <cstdint>

#include "nanovllm/ops/backend.h"
#include "nanovllm/ops/cuda/attention/decode_splits.h"
#include "nanovllm/ops/cuda/attention/kv_layout.cuh"
#include "nanovllm/ops/cuda/attention/rope.h"
#include "nanovllm/ops/cuda/device/runtime.h"

// Attention over the paged KV cache, and the rotary embedding before it. Read this file first, then
// - kv_layout.cuh: where keys and values lie; rope.h and rope.cu: the kernels that store them;
// - attention_general.cu: the formula in its simplest form, for every dtype and head_dim;
// - attention_decode.cu with decode_splits.h, decode_copies.cuh and decode_heads.cuh: one new token
//   a sequence; decode_cluster.cu: the same of few sequences, with norm and rotation in it;
// - attention_prefill.cu: several new tokens a sequence, on any GPU; prefill_sm90.cu with
//   prefill_tiles.cuh, prefill_copy.cuh and prefill_softmax.cuh: the same on Hopper.
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

// -- decode: sequences with one new token, tiled layout

/// Where the tiles of a thread block of decode attention begin.
struct alignas(16) DecodeStart {
  int32_t seq, head, tile;       // sequence, KV head, tile of the head's keys
  int32_t context, slot, token;  // of the sequence: its keys, its row of block_tables, its row of q
  int32_t block;                 // block of the cache that holds the tile's first key
  int32_t position;              // of the tile in the list of all tiles
};

/// How a step's decode attention is spread over the multiprocessors. begin_step computes it once
/// and every layer uses it. The keys of a sequence form tiles of kDecodeTile. All tiles of all KV
/// heads of all sequences with one new token form one list, and each thread block takes a range of
/// it.
struct DecodePlan {
  DecodeStart* starts;  // [num_blocks + 1]; the last one has a position alone
  int32_t* first_tile;  // [S + 1] the position of a sequence's first tile; then the list's length
  DecodeSplits* splits;
  int num_blocks;  // of the grid
};

/// Memory that decode attention keeps between its thread blocks. Counters are zero between
/// launches.
struct DecodeScratch {
  // [num_blocks, 2, 16, head_dim + 2]: weighted sums, then maximum and sum of weights. A thread
  // block has two such parts: of the head that began before its range, and of the one that ends
  // behind it.
  float* partial;
  int32_t* counters;  // [S, num_kv_heads]
};
/// Floats of DecodeScratch::partial.
int64_t decode_partial_size(int num_blocks, int head_dim);

struct DecodeOptions {
  bool portable = false;  ///< uses only instructions of compute capability 8.0
  /// In this step no key but each sequence's last is written, so that the others may be read before
  /// the previous kernel ends.
  bool prefetch_keys = false;
};
/// Up to 16 query heads for a KV head; up to 8 with `portable` and head_dim 256.
void decode_attention(Launch where, const AttentionParams& params, const DecodePlan& plan,
                      const DecodeScratch& scratch, DType dtype, DecodeOptions options);

/// Decode attention that takes qkv as the GEMM left it, and stores k and v.
struct RopedDecodeParams {
  AttentionParams attention;
  RopeParams rope;
  bool prefetch_keys;  // as in DecodeOptions
};
/// The thread blocks that share a KV head's keys in roped_decode_attention; 0 where
/// decode_attention is faster, or head_dim is above 128. Each of the sequences has one new token;
/// `num_keys` is the sum of their lengths, `longest` the largest.
int decode_cluster_size(Launch where, const KvLayout& layout, int num_seqs, int64_t num_keys,
                        int64_t longest);
/// On Hopper, for few sequences and up to 8 query heads for a KV head: rope_and_store and attention
/// in one kernel. `cluster_size` is decode_cluster_size().
void roped_decode_attention(Launch where, RopedDecodeParams params, DType dtype, int cluster_size);

// -- prefill: sequences with more than one new token, tiled layout

/// On any GPU.
void prefill_attention(Launch where, const AttentionParams& params, DType dtype);
/// On Hopper. `counters` [kPrefillCounters] are zero between launches.
void prefill_attention_sm90(Launch where, const AttentionParams& params, int32_t* counters,
                            DType dtype);
inline constexpr int kPrefillCounters = 2;

// -- all sequences, any layout and dtype; slow

void general_attention(Launch where, const AttentionParams& params, DType dtype);

}  // namespace nanovllm::cuda
