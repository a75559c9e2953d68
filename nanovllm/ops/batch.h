#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "nanovllm/base/tensor.h"
#include "nanovllm/ops/kv_cache.h"
#include "nanovllm/ops/sample_row.h"

namespace nanovllm {

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

}  // namespace nanovllm
