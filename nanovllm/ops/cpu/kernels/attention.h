#pragma once

#include <cstdint>

namespace nanovllm::cpu {

/// Keys are counted from position 0 in blocks of this many, whatever the size of the cache's blocks
/// is. Each key block gives one partial result (the largest score, the sum of the weights, the
/// weighted sum of V), and partial results are merged in ascending order. So the bits of a query's
/// output depend on its keys alone, not on the chunks of a prompt, the batch or the threads.
/// Sources: Milakov and Gimelshein, "Online normalizer calculation for softmax", 2018; Dao,
/// "FlashAttention-2", 2023.
constexpr int kKeyBlock = 256;
/// This many keys, a group, are contiguous in the cache: block_size is a multiple of it. If the
/// cache is of e4m3, the group's scales follow, a float for each key.
constexpr int kKeyGroup = 16;

/// One block of keys against a tile of query rows of one KV head. Rows are ordered by query token,
/// then query head.
struct KeyBlockArgs {
  const void* queries;                        // [rows, head_dim] as load_queries left them
  const void* keys[kKeyBlock / kKeyGroup];    // each [kKeyGroup, head_dim] of the cache's dtype,
                                              // then [kKeyGroup] scales if that is e4m3
  const void* values[kKeyBlock / kKeyGroup];  // in the layout of `keys`
  // The keys of the block that the thread computes next, which are prefetched, and how many groups
  // of them there are.
  const void* next_keys[kKeyBlock / kKeyGroup];
  int num_next;
  int first_visible;  // keys of this block that the first token's rows see, at least 1; one more
                      // for each further token
  int group;          // query heads of a token
  int rows, head_dim;
  float scale;    // the scores' scale times log2(e), since weights are powers of two
  float* panel;   // scratch [head_dim, kMostInPanel]
  float* scores;  // scratch [rows, kKeyBlock]
};

/// Partial results of a tile's rows: a row's weights are 2^(score - max).
struct Partial {
  float* max;  // [rows]
  float* sum;  // [rows]
  float* out;  // [rows, head_dim]
};

/// The most keys of a panel of K, which is keys in the order of the multiplication, on any
/// instruction set.
constexpr int kMaxPanelKeys = 64;
/// The most words for each dimension of a panel of K, or of V with two keys in a word
/// (attention_amx.h).
constexpr int kMostInPanel = kKeyBlock / 2;
/// Rows of scratch memory and partial results are a multiple of this, and may all be written.
constexpr int kRowTile = 16;

/// Kernels of one instruction set for one dtype of queries and one of the cache.
struct AttentionKernels {
  int head_dim_multiple;  // head_dim must be a multiple of this
  int query_bytes;        // bytes of an element that load_queries writes
  /// Copies one row [head_dim] of the model's dtype into a tile of queries.
  void (*load_queries)(void* to, const void* from, int head_dim);
  /// Computes the partial result of one key block.
  void (*key_block)(const KeyBlockArgs& args, const Partial& partial);
  /// Merges next into total; an empty total has max -infinity, and sum and out 0.
  void (*merge)(const Partial& total, const Partial& next, int rows, int head_dim);
  /// Stores one row, out / sum, in the model's dtype.
  void (*store_row)(void* to, const float* from, float sum, int head_dim);
};

}  // namespace nanovllm::cpu
