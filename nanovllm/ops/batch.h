#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "nanovllm/base/tensor.h"
#include "nanovllm/ops/sample_row.h"

namespace nanovllm {

/// Stands for an input token that the host has not seen: the one that the slot drew last.
inline constexpr int32_t kTokenInFlight = -1;

/// Entry `index` of the slot's block table becomes `block`.
struct BlockUpdate {
  int32_t slot = 0, index = 0, block = 0;
};

/// What lasts from step to step, in the backend's memory; a running sequence has a slot. int32.
struct SlotTables {
  Tensor block_tables;  ///< [max_num_seqs, max_blocks] block of the cache for every block_size
                        ///< tokens of a slot's sequence
  Tensor last_tokens;   ///< [max_num_seqs] what each slot drew last
};

/// A step's arrays on the host, as in Batch; reused from step to step.
struct HostBatch {
  std::vector<int32_t> input_ids, positions, slot_mapping, cu_seqlens_q, context_lens, seq_slots,
      sample_rows, sample_slots;
  std::vector<SampleRow> samples;
  std::vector<BlockUpdate> block_updates;
  bool reads_logits = true;  ///< after the step has drawn its tokens
};

/// What the forward pass sees of a step: T new tokens of S sequences, R rows whose next token is
/// drawn. Prefill, chunked prefill and decode differ in lengths alone. All tensors are int32 and
/// lie where the backend computes.
struct Batch {
  Tensor input_ids;     ///< [T]
  Tensor positions;     ///< [T] index of each token in its sequence
  Tensor slot_mapping;  ///< [T] block * block_size + offset where K and V go; -1: not stored
  Tensor cu_seqlens_q;  ///< [S + 1] first new token of each sequence; the last entry is T
  Tensor context_lens;  ///< [S] tokens in the cache that the sequence's last new token sees, itself
                        ///< included; 0 in a row that only fills up a batch
  Tensor seq_slots;     ///< [S] slot of each sequence
  Tensor block_tables;  ///< [max_num_seqs, max_blocks], a row for each slot
  Tensor last_tokens;   ///< [max_num_seqs]
  Tensor sample_rows;   ///< [R] row of T whose logits are wanted; a row may stand here more than
                        ///< once
  Tensor sample_slots;  ///< [R] slot that gets the token; -1: nobody's
  std::span<const SampleRow> samples = {};  ///< [R] on the host

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
