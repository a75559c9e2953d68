#pragma once

#include <cstddef>
#include <cstdint>

#include "nanovllm/base/tensor.h"

namespace nanovllm {

/// The bytes of the key (or value) of one token and KV head in a cache of this dtype. A key of
/// kE4M3 has a scale, a float32: its elements times the scale are the numbers.
constexpr size_t kv_key_bytes(DType dtype, int64_t head_dim) {
  return static_cast<size_t>(head_dim) * dtype_size(dtype) +
         (dtype == DType::kE4M3 ? sizeof(float) : 0);
}

/// The KV cache of one rank: its blocks for all layers. It has the size of [2, layers, blocks,
/// block_size, kv_heads] keys; each backend chooses the order within a block. `dtype` is the
/// model's or kE4M3.
struct KvCache {
  void* data = nullptr;
  DType dtype = DType::kF32;
  int64_t num_layers = 0, num_blocks = 0, block_size = 0, num_kv_heads = 0, head_dim = 0;
  /// [max_num_seqs, max_blocks] int32: for every block_size tokens of a slot's sequence, the block
  /// that holds them. It is kept from step to step.
  Tensor block_tables = {};

  /// The bytes of one key (or value) of a head, with its scale.
  int64_t key_bytes() const { return static_cast<int64_t>(kv_key_bytes(dtype, head_dim)); }
  /// The bytes of the keys (or values) of one head in a block.
  int64_t entry_bytes() const { return block_size * key_bytes(); }
  /// The size of a block in bytes: K and V of all layers.
  size_t block_bytes() const {
    return static_cast<size_t>(2 * num_layers * num_kv_heads * entry_bytes());
  }
};

/// Entry `index` of the slot's block table becomes `block`.
struct BlockUpdate {
  int32_t slot = 0, index = 0, block = 0;
};

/// Block `from` of the KV cache is copied to block `to`, in all layers.
struct BlockCopy {
  int32_t from = 0, to = 0;
};

}  // namespace nanovllm
