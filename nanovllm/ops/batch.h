#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "nanovllm/base/tensor.h"
#include "nanovllm/ops/sample_row.h"

namespace nanovllm {

/// Entry `index` of the slot's block table becomes `block`.
struct BlockUpdate {
  int32_t slot = 0, index = 0, block = 0;
};

/// Block `from` of the KV cache is copied to block `to`, in all layers.
struct BlockCopy {
  int32_t from = 0, to = 0;
};

/// What is kept from step to step for each slot, in the backend's memory, as int32. Each running
/// sequence has one slot (ownership.slots).
struct SlotTables {
  Tensor block_tables;  ///< [max_num_seqs, max_blocks] for every block_size tokens of a slot's
                        ///< sequence, the block of the KV cache that holds them
  Tensor last_tokens;   ///< [max_num_seqs] the token that each slot drew last
};

/// The arrays of a step in host memory; they mean the same as in Batch. The object is reused from
/// step to step, so that it need not allocate.
struct HostBatch {
  std::vector<int32_t> input_ids, positions, slot_mapping, cu_seqlens_q, context_lens, seq_slots,
      sample_rows, sample_slots;
  std::vector<SampleRow> samples;
  std::vector<BlockUpdate> block_updates;
  /// Log-probabilities are those of the distributions from which the rows are drawn, instead of
  /// those of the raw logits.
  bool processed_logprobs = false;
};

/// What the forward pass knows about a step: T new tokens of S sequences, and R rows whose next
/// token is drawn. Prefill, chunked prefill and decode differ only in these lengths. All tensors
/// are int32 and in the backend's memory.
struct Batch {
  Tensor input_ids;     ///< [T]
  Tensor positions;     ///< [T] index of each token in its sequence
  Tensor slot_mapping;  ///< [T] block * block_size + offset, where K and V are stored; -1: nowhere
  Tensor cu_seqlens_q;  ///< [S + 1] index of each sequence's first new token; the last entry is T
  Tensor context_lens;  ///< [S] number of tokens in the KV cache that the sequence's last new token
                        ///< sees, including itself; 0 for padding, which only replayed steps have
  Tensor seq_slots;     ///< [S] the slot of each sequence
  Tensor block_tables;  ///< [max_num_seqs, max_blocks], as in SlotTables
  Tensor last_tokens;   ///< [max_num_seqs], as in SlotTables
  Tensor sample_rows;   ///< [R] the rows of T whose logits are needed; the same row may be named
                        ///< several times
  Tensor sample_slots;  ///< [R] the slot that gets the drawn token; -1: none
  std::span<const SampleRow> samples = {};  ///< [R] in host memory
  bool processed_logprobs = false;          ///< as in HostBatch

  int64_t num_tokens() const { return input_ids.shape[0]; }
  int64_t num_seqs() const { return context_lens.shape[0]; }
};

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

  /// The bytes of one key (or value) of a head, with its scale.
  int64_t key_bytes() const { return static_cast<int64_t>(kv_key_bytes(dtype, head_dim)); }
  /// The bytes of the keys (or values) of one head in a block.
  int64_t entry_bytes() const { return block_size * key_bytes(); }
  /// The size of a block in bytes: K and V of all layers.
  size_t block_bytes() const {
    return static_cast<size_t>(2 * num_layers * num_kv_heads * entry_bytes());
  }
};

}  // namespace nanovllm
