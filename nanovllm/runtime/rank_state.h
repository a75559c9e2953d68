#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "nanovllm/ops/batch.h"
#include "nanovllm/runtime/step_io.h"

namespace nanovllm {

/// What a rank remembers of a running sequence from step to step (`ownership.slots`).
class Slot {
 public:
  /// Gives the slot to a sequence. Removes the setup's lists from the front of both spans.
  void start(const SlotSetup& setup, std::span<const int32_t>& ids,
             std::span<const TokenBias>& biases);
  /// How the token at `position` is sampled; valid until the next call. The token before it may be
  /// in flight.
  SampleRow sample_row(int32_t position);
  /// Appends the token that was sampled.
  void push(int32_t token);

  const SlotSetup& setup() const { return setup_; }
  /// How often the slot was started: a token that was sampled before the last start belongs to
  /// another sequence and is dropped (`cleanup.slots`).
  uint64_t num_starts() const { return num_starts_; }

 private:
  void count(int32_t token, int32_t in_answer);

  SlotSetup setup_;
  uint64_t num_starts_ = 0;
  std::vector<int32_t> masked_ids_, allowed_ids_, bad_words_;
  std::vector<TokenBias> biases_;
  int32_t num_known_ = 0;           // tokens of the prompt and the answer
  std::vector<int32_t> answer_;     // its tokens; empty if there are no bad words
  std::vector<TokenCount> counts_;  // of prompt and answer; empty if there are no penalties
  std::unordered_map<int32_t, size_t> count_of_;
  std::vector<int32_t> masked_now_;
  std::vector<MaskedAfter> masked_after_;
};

/// The slots of one rank and their block tables. It applies a step's changes to them and writes the
/// step as a batch.
class RankState {
 public:
  RankState(int64_t max_num_seqs, int64_t max_blocks_per_seq, int64_t block_size);

  /// Applies the step's setups and block updates.
  void apply(const StepInput& input);
  /// Fills the step's arrays; the SampleRows are valid until the slots change.
  void fill(const StepInput& input, HostBatch& batch);
  Slot& slot(int32_t i) { return slots_[static_cast<size_t>(i)]; }
  int64_t num_slots() const { return static_cast<int64_t>(slots_.size()); }

 private:
  std::vector<Slot> slots_;
  std::vector<int32_t> block_tables_;  // [max_num_seqs, max_blocks_per_seq]
  int64_t max_blocks_per_seq_;
  int64_t block_size_;
};

}  // namespace nanovllm
