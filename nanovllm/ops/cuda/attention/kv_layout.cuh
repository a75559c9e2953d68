#pragma once

#include <cstdint>

#include "nanovllm/ops/batch.h"

#if defined(__CUDACC__)
#define NANOVLLM_HOST_DEVICE __host__ __device__
#else
#define NANOVLLM_HOST_DEVICE
#endif

namespace nanovllm::cuda {

/// How keys and values are stored. The cache is [layers, 2 (K, V), blocks, kv_heads] of entries. An
/// entry is the keys (or values) of one head in one block of the cache, block_size * head_dim
/// elements:
///
/// - tiled (16-bit elements, head_dim 64, 128 or 256): [block_size / 8][head_dim / 64][8 keys][64
///   dims], where the 16-byte chunk c of key r is at chunk c ^ r. Every [8, 64] piece is an atom
///   of the tensor cores' 128-byte swizzle. So a contiguous copy of 8 n keys into shared memory is
///   ready for wgmma, and ldmatrix causes no bank conflicts.
/// - else [block_size][head_dim].
struct KvLayout {
  int64_t layer_stride;  ///< elements from K of a layer to its V: half of a layer
  int num_kv_heads, block_size, head_dim;
  bool tiled;

  explicit KvLayout(const KvCache& kv)
      : layer_stride(kv.num_blocks * kv.block_elements()),
        num_kv_heads(static_cast<int>(kv.num_kv_heads)),
        block_size(static_cast<int>(kv.block_size)),
        head_dim(static_cast<int>(kv.head_dim)),
        tiled(dtype_size(kv.dtype) == 2 &&
              (kv.head_dim == 64 || kv.head_dim == 128 || kv.head_dim == 256)) {}

  /// K of a layer; its V is layer_stride elements after it.
  char* layer_keys(const KvCache& kv, int64_t layer) const {
    return static_cast<char*>(kv.data) +
           2 * layer_stride * layer * static_cast<int64_t>(dtype_size(kv.dtype));
  }
  NANOVLLM_HOST_DEVICE int64_t entry(int64_t block, int head) const {
    return (block * num_kv_heads + head) * block_size * head_dim;
  }
  /// Element d of key `row` inside its entry.
  NANOVLLM_HOST_DEVICE int at(int row, int d) const {
    if (!tiled) return row * head_dim + d;
    return row / 8 * 8 * head_dim + d / 64 * 512 + row % 8 * 64 + ((d % 64 / 8) ^ (row % 8)) * 8 +
           d % 8;
  }
  /// Element d of the key or value in this slot of the cache (Batch::slot_mapping).
  NANOVLLM_HOST_DEVICE int64_t element(int slot, int head, int d) const {
    return entry(slot / block_size, head) + at(slot % block_size, d);
  }
};

}  // namespace nanovllm::cuda

#undef NANOVLLM_HOST_DEVICE
