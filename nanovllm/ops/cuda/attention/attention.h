#pragma once

#include <cstdint>
#include <span>

#include "nanovllm/ops/backend.h"
#include "nanovllm/ops/cuda/attention/decode/decode_splits.h"
#include "nanovllm/ops/cuda/attention/kv_layout.cuh"
#include "nanovllm/ops/cuda/attention/rope.h"
#include "nanovllm/ops/cuda/device/runtime.h"
#include "nanovllm/ops/cuda/elementwise/quantized_activations.h"

// Attention over the paged KV cache, and the rotary embedding before it. Read this file first, then
// - kv_layout.cuh: how keys and values are stored; rope.h and rope.cu: the kernels that store them;
// - attention_general.cu: the formula in its simplest form, for every dtype and head_dim;
// - decode/: sequences with one new token. attention_decode.cu with decode_splits.h,
//   decode_copies.cuh and decode_heads.cuh; decode_cluster.cu: few sequences, with norm and
//   rotation in the same kernel;
// - prefill/: sequences with several new tokens. attention_prefill.cu: on any GPU; prefill_sm90.cu
//   with prefill_tiles.cuh, prefill_copy.cuh and prefill_softmax.cuh: on Hopper; dequantize.cu:
//   makes 16-bit copies of e4m3 keys for both.
namespace nanovllm::cuda {

/// The arguments of backend.h's attention in the form that the kernels take.
struct AttentionParams {
  void* out;                    // [T, num_heads * head_dim]
  const void* qkv;              // [T, (num_heads + 2 num_kv_heads) * head_dim], q first
  void *k, *v;                  // the layer's entries, as KvLayout has them
  const int32_t* block_tables;  // [max_num_seqs, max_blocks]
  const int32_t *seq_slots, *cu_seqlens_q, *context_lens;  // [S], [S + 1], [S]
  KvLayout layout;
  int num_seqs, num_tokens, num_heads, max_blocks;
  float scale;
  /// Where decode_attention() writes out quantized too, if this has values.
  QuantizedActivations quantized_out = {};

  /// These arguments for only `count` sequences from `first` on, which have `tokens` new tokens.
  AttentionParams sequences(int first, int count, int tokens) const {
    AttentionParams part = *this;
    part.seq_slots += first, part.cu_seqlens_q += first, part.context_lens += first;
    part.num_seqs = count, part.num_tokens = tokens;
    return part;
  }
};

// -- decode: sequences with one new token, tiled layout

/// The most query heads that share a KV head (a group) in the kernels for decode.
inline constexpr int kMaxGroup = 16;

/// The first tile of a thread block's range in decode attention.
struct alignas(16) DecodeStart {
  int32_t seq, head, tile;       // sequence, KV head, tile of the head's keys
  int32_t context, slot, token;  // the sequence's number of keys, row of block_tables, row of q
  int32_t block;                 // block of the cache that holds the tile's first key
  int32_t position;              // index of the tile in the list of all tiles
};

/// How a step's decode attention is divided among the thread blocks. begin_step computes it once
/// and every layer uses it. The keys of a KV head of a sequence form tiles of kDecodeTile. All
/// tiles of all KV heads of all sequences with one new token form one list, and each thread block
/// computes a range of the list.
struct DecodePlan {
  DecodeStart* starts;  // [num_blocks + 1]; the last one has only a position, the list's length
  int32_t* first_tile;  // [S + 1] the position of a sequence's first tile; then the list's length
  DecodeSplits* splits;
  int num_blocks;  // thread blocks of the grid
};

/// Whether decode_attention() can write AttentionParams::quantized_out.
constexpr bool quantizes_output(const KvLayout& layout, int num_heads) {
  return num_heads / layout.num_kv_heads * layout.head_dim % kQuantizedChunk == 0;
}

/// Memory that decode attention keeps between its thread blocks. Counters are zero between
/// launches.
struct DecodeScratch {
  // [num_blocks, 2, kMaxGroup, head_dim + 4]: weighted sums, then maximum and sum of weights. A
  // thread block has two such partial results: of the head that begins before its range, and of the
  // head that ends behind it.
  float* partial;
  int32_t* counters;  // [S, num_kv_heads]
};
/// Floats of DecodeScratch::partial.
int64_t decode_partial_size(int num_blocks, int head_dim);

struct DecodeOptions {
  bool portable = false;  ///< uses only instructions of compute capability 8.0
  /// This step writes no key but the last one of each sequence, so all others may be read before
  /// the previous kernel has ended.
  bool prefetch_keys = false;
};
/// Supports up to kMaxGroup query heads for a KV head; up to 8 with `portable` and head_dim 256.
void decode_attention(Launch where, const AttentionParams& params, const DecodePlan& plan,
                      const DecodeScratch& scratch, DType dtype, DecodeOptions options);

/// Decode attention with rope_and_store: qkv is the output of the GEMM.
struct RopeDecodeParams {
  AttentionParams attention;
  RopeParams rope;
  bool prefetch_keys;  // see DecodeOptions
};
/// The most thread blocks of a cluster of rope_decode_attention() on this GPU, a power of two: a
/// cluster lives on a group of multiprocessors, which has fewer than 16 on some GPUs.
int most_in_decode_cluster(int num_sms);
/// How many thread blocks share the keys of a KV head in rope_decode_attention(); 0 if
/// decode_attention() is faster, for example for most batches of more than kFewTokens sequences, or
/// if head_dim is above 128. Each of the sequences has one new token; the last `num_padding` of
/// them have no keys. `num_keys` is the sum of their lengths, `longest` the largest one.
int decode_cluster_size(Launch where, const KvLayout& layout, int num_seqs, int num_padding,
                        int64_t num_keys, int64_t longest);
/// Computes rope_and_store and attention in one kernel, on Hopper, for few sequences and up to
/// kMaxGroup query heads for a KV head. `cluster_size` is decode_cluster_size(), or another power
/// of two up to 16.
void rope_decode_attention(Launch where, RopeDecodeParams params, DType dtype, int cluster_size);

// -- prefill: sequences with more than one new token, tiled layout

/// Runs on any GPU and reads 16-bit keys and values, as prefill_attention_sm90() does.
void prefill_attention(Launch where, const AttentionParams& params, DType dtype);
/// Memory that prefill_attention_sm90() keeps between its thread blocks, of the sizes below.
/// Counters are zero between launches.
struct PrefillScratch {
  float* partial;
  int32_t* counters;
};
int64_t prefill_partial_size(int num_sms, int head_dim);
int64_t num_prefill_counters(int num_sms);
/// The number of new tokens of a sequence, and the number of all its keys.
struct PrefillLengths {
  int num_new, context;
};
/// Runs on Hopper. `lengths` has an entry for each sequence of `params`.
void prefill_attention_sm90(Launch where, const AttentionParams& params,
                            std::span<const PrefillLengths> lengths, const PrefillScratch& scratch,
                            DType dtype);

/// Memory for 16-bit copies of a layer's e4m3 keys and values, which prefill attention reads
/// instead of the cache. The copies have blocks and block tables of their own.
struct DequantizedKeys {
  void* memory;           // a layer of num_seqs * blocks_per_seq blocks in the 16-bit layout
  int32_t* block_tables;  // [max_num_seqs, max_blocks]
};
/// Writes the 16-bit copies for the sequences of `params` that have more than one new token. Each
/// has at most `blocks_per_seq` blocks. Returns `params` with the copies in place of the cache.
AttentionParams dequantize(Launch where, const AttentionParams& params, DType dtype,
                           int blocks_per_seq, const DequantizedKeys& to);
/// The bytes of DequantizedKeys::memory for each block.
int64_t dequantized_block_bytes(const KvCache& kv);

// -- all sequences, any layout and dtype; slow

void general_attention(Launch where, const AttentionParams& params, DType dtype);

}  // namespace nanovllm::cuda
