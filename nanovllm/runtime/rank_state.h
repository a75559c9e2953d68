#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "nanovllm/ops/batch.h"
#include "nanovllm/runtime/step_io.h"

namespace nanovllm {

/// The arrays of a Batch on the host, reused from step to step.
struct HostBatch {
  std::vector<int32_t> input_ids, positions, slot_mapping, cu_seqlens_q, context_lens, block_tables,
      sample_rows;
  int64_t max_blocks = 1;  ///< row length of block_tables

  Batch view();
};

/// What a rank keeps of a running sequence from step to step.
class Slot {
 public:
  /// A sequence gets the slot. Takes the setup's lists from the front of both spans.
  void start(const SlotSetup& setup, std::span<const int32_t>& ids,
             std::span<const TokenBias>& biases);
  /// How token number `position` is drawn; valid until the next call.
  SampleRow sample_row(int32_t position);
  /// Takes in the token that was drawn.
  void push(int32_t token);

  const SlotSetup& setup() const { return setup_; }
  int32_t last_token() const { return last_token_; }

 private:
  void count(int32_t token, int32_t in_answer);

  SlotSetup setup_;
  int32_t last_token_ = 0;
  std::vector<int32_t> masked_ids_, allowed_ids_, bad_words_;
  std::vector<TokenBias> biases_;
  std::vector<int32_t> answer_;     // kept where there are bad words
  std::vector<TokenCount> counts_;  // kept where there are penalties
  std::unordered_map<int32_t, size_t> count_of_;
  std::vector<int32_t> masked_now_;
};

/// The slots of one rank and their block tables: takes in what a step changed and spells the step
/// out as a batch.
class RankState {
 public:
  RankState(int64_t max_num_seqs, int64_t max_blocks_per_seq, int64_t block_size);

  void apply(const StepInput& input, HostBatch& batch);
  Slot& slot(int32_t i) { return slots_[static_cast<size_t>(i)]; }

 private:
  std::vector<Slot> slots_;
  std::vector<int32_t> block_tables_;  // [max_num_seqs, max_blocks_per_seq]
  int64_t max_blocks_per_seq_;
  int64_t block_size_;
};

}  // namespace nanovllm
