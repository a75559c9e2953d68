#pragma once

#include <cstdint>
#include <vector>

#include "nanovllm/base/tensor.h"
#include "nanovllm/ops/kv_cache.h"
#include "nanovllm/ops/sample_row.h"

namespace nanovllm {

/// A sequence that computes new tokens in a step. `start` and what follows from it are bounds: the
/// sequence has at most so many tokens, as far as the host knows.
struct StepRow {
  int32_t slot = -1;       ///< -1: padding, which writes nothing (state.padding-writes-nothing)
  int32_t start = 0;       ///< index of the first new token in the sequence
  int32_t num_tokens = 0;  ///< new ones
  int32_t store = 1;  ///< 0: K and V are already in the cache, in a shared block; not written again
};

/// A token of a step whose hidden state after the last layer is needed.
struct OutputPlace {
  int32_t row = 0, offset = 0;  ///< token `offset` of rows[row]
  int32_t slot = -1;            ///< the slot that gets the token that is drawn; -1: none
};

/// What a step computes: T new tokens of S sequences, and what is needed of N of them. Prefill,
/// chunked prefill and decode differ only in these lengths. The host writes the first part; from it
/// the backend derives the second part in its own memory (Backend::begin_step()).
struct Step {
  // -- from the host
  std::vector<int32_t> token_ids;    ///< [T], one row after the other; or kTokenInFlight
  std::vector<StepRow> rows;         ///< [S]
  std::vector<OutputPlace> outputs;  ///< [N] the R drawn ones first; the same token may be named
                                     ///< several times
  std::vector<SampleRow> samples;    ///< [R] how the first R are drawn
  std::vector<BlockUpdate> block_updates;
  Tensor last_tokens;  ///< [max_num_seqs] int32 in the backend's memory, kept from step to step:
                       ///< the token that each slot drew last
  /// Log-probabilities are those of the distributions from which the rows are drawn, instead of
  /// those of the raw logits. Kept from step to step, too.
  bool processed_logprobs = false;

  // -- from the backend: int32, in its memory
  Tensor input_ids;     ///< [T] token_ids, with the last token of its slot for kTokenInFlight
  Tensor positions;     ///< [T] index of each token in its sequence
  Tensor slot_mapping;  ///< [T] block * block_size + offset, where K and V are stored; -1: nowhere
  Tensor cu_seqlens_q;  ///< [S + 1] index of each sequence's first new token; the last entry is T
  Tensor context_lens;  ///< [S] number of tokens in the KV cache that the sequence's last new token
                        ///< sees, including itself; 0 for padding
  Tensor seq_slots;     ///< [S] the slot of each sequence; 0 for padding
  Tensor output_rows;   ///< [N] the index of each output's token among the T

  int64_t num_tokens() const { return static_cast<int64_t>(token_ids.size()); }
  int64_t num_seqs() const { return static_cast<int64_t>(rows.size()); }
  int64_t num_drawn() const { return static_cast<int64_t>(samples.size()); }
  /// Empties the lists; their memory is reused.
  void clear();
  /// Whether a row's mask comes after the forward pass was begun (SampleRow::num_late_words).
  bool has_late_rows() const;
  /// Whether output i is token i, for all outputs.
  bool has_outputs_in_order() const;
  /// Adds rows of one token, which is drawn, until there are `size`. All present ones are such.
  void pad(int64_t size);
};

/// The second part of a step in host memory.
struct DerivedArrays {
  std::vector<int32_t> input_ids, positions, slot_mapping, cu_seqlens_q, context_lens, seq_slots,
      output_rows;
};
/// Updates the block tables, and derives the second part of `step` into `arrays`, which must
/// outlive it. All memory is the host's. This is what the first kernel of a step does on a device.
void derive(Step& step, const KvCache& kv, DerivedArrays& arrays);

}  // namespace nanovllm
