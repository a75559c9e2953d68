#pragma once

#include <cstdint>

#include "nanovllm/base/tensor.h"

namespace nanovllm {

/// What the forward pass sees of a step: T new tokens of S sequences, R rows whose next token is
/// drawn. Prefill, chunked prefill and decode differ in lengths alone. All tensors are int32 and
/// lie where the backend computes.
struct Batch {
  Tensor input_ids;     ///< [T]
  Tensor positions;     ///< [T] index of each token in its sequence
  Tensor slot_mapping;  ///< [T] block * block_size + offset where K and V go; -1: not stored
  Tensor cu_seqlens_q;  ///< [S + 1] first new token of each sequence; the last entry is T
  Tensor context_lens;  ///< [S] tokens in the cache that the sequence's last new token sees, itself
                        ///< included
  Tensor block_tables;  ///< [S, max_blocks] block of the cache for every block_size tokens
  Tensor
      sample_rows;  ///< [R] row of T whose logits are wanted; a row may stand here more than once

  int64_t num_tokens() const { return input_ids.shape[0]; }
  int64_t num_seqs() const { return context_lens.shape[0]; }
};

/// The pool of KV blocks of one rank, for all layers. Storage is [2, layers, blocks, block_size,
/// kv_heads, head_dim] in size; the order inside a block is the backend's.
struct KvCache {
  void* data = nullptr;
  DType dtype = DType::kF32;
  int64_t num_layers = 0, num_blocks = 0, block_size = 0, num_kv_heads = 0, head_dim = 0;

  /// Elements of K (or of V) of one layer's block.
  int64_t block_elements() const { return block_size * num_kv_heads * head_dim; }
  /// Bytes of a block over all layers, K and V.
  size_t block_bytes() const {
    return static_cast<size_t>(2 * num_layers * block_elements()) * dtype_size(dtype);
  }
};

}  // namespace nanovllm
