#pragma once

#include <cstdint>

#include "nanovllm/ops/kv_cache.h"

#if defined(__CUDACC__)
#define NANOVLLM_HOST_DEVICE __host__ __device__
#else
#define NANOVLLM_HOST_DEVICE
#endif

namespace nanovllm::cuda {

/// In a cache of e4m3 this many keys form a group, which is stored together with their scales.
inline constexpr int kScaledKeys = 16;

/// How keys and values are stored. The cache is [layers, 2 (K, V), blocks, kv_heads] of entries. An
/// entry is the keys (or values) of one head in one block of the cache:
///
/// - 16-bit elements, tiled: [block_size / 8][head_dim / 64][8 keys][64 dims], where the 16-byte
///   chunk c of key r is at chunk c ^ r. Every [8, 64] piece is an atom of the tensor cores'
///   128-byte swizzle. So a contiguous copy of 8 n keys into shared memory is ready for wgmma, and
///   ldmatrix causes no bank conflicts.
/// - e4m3: [block_size / 16] groups. A group is [16 keys][head_dim] elements, then the 16 keys'
///   scales as float32. So the scales of a block are in the block, and a contiguous copy of 16 n
///   keys has their scales. If it is tiled, chunk c of key r is at chunk c ^ r % 8 (with head_dim
///   64, c ^ r / 2 % 4), so that ldmatrix causes no bank conflicts.
/// - else [block_size][head_dim].
///
/// Layouts are tiled if head_dim is 64, 128 or 256. All offsets are in bytes.
struct KvLayout {
  int64_t layer_stride;  ///< from K of a layer to its V: half of a layer
  int num_kv_heads, block_size, head_dim;
  int key_bytes;      ///< bytes of a key or value of one head, with its scale
  int element_bytes;  ///< 1 means e4m3
  bool tiled;

  explicit KvLayout(const KvCache& kv)
      : layer_stride(kv.num_blocks * kv.num_kv_heads * kv.entry_bytes()),
        num_kv_heads(static_cast<int>(kv.num_kv_heads)),
        block_size(static_cast<int>(kv.block_size)),
        head_dim(static_cast<int>(kv.head_dim)),
        key_bytes(static_cast<int>(kv.key_bytes())),
        element_bytes(static_cast<int>(dtype_size(kv.dtype))),
        tiled(element_bytes <= 2 &&
              (kv.head_dim == 64 || kv.head_dim == 128 || kv.head_dim == 256)) {}

  /// The layout of a cache of 16-bit elements with these heads and `num_blocks` blocks.
  KvLayout of_16bit(int64_t num_blocks) const {
    return KvLayout({.dtype = DType::kF16,
                     .num_layers = 1,
                     .num_blocks = num_blocks,
                     .block_size = block_size,
                     .num_kv_heads = num_kv_heads,
                     .head_dim = head_dim});
  }
  /// K of a layer; its V is layer_stride after it.
  char* layer_keys(const KvCache& kv, int64_t layer) const {
    return static_cast<char*>(kv.data) + 2 * layer_stride * layer;
  }
  NANOVLLM_HOST_DEVICE bool is_e4m3() const { return element_bytes == 1; }
  NANOVLLM_HOST_DEVICE int64_t entry(int64_t block, int head) const {
    return (block * num_kv_heads + head) * block_size * key_bytes;
  }
  /// Element d of key `row` inside its entry.
  NANOVLLM_HOST_DEVICE int at(int row, int d) const {
    if (is_e4m3()) {
      const int r = row % kScaledKeys, key = (row - r) * key_bytes + r * head_dim;
      if (!tiled) return key + d;
      return key + ((d / 16) ^ (head_dim == 64 ? r / 2 % 4 : r % 8)) * 16 + d % 16;
    }
    if (!tiled) return (row * head_dim + d) * element_bytes;
    return (row / 8 * 8 * head_dim + d / 64 * 512 + row % 8 * 64 + ((d % 64 / 8) ^ (row % 8)) * 8 +
            d % 8) *
           2;
  }
  /// The scale of key `row` inside its entry, if the cache is of e4m3.
  NANOVLLM_HOST_DEVICE int scale_at(int row) const {
    const int r = row % kScaledKeys;
    return (row - r) * key_bytes + kScaledKeys * head_dim + r * 4;
  }
};

}  // namespace nanovllm::cuda

#undef NANOVLLM_HOST_DEVICE
