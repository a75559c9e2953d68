#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "nanovllm/base/to_size.h"
#include "nanovllm/ops/step.h"
#include "nanovllm/runtime/step_io.h"

namespace nanovllm {

/// What a rank remembers of a running sequence from step to step (`ownership.slots`).
class Slot {
 public:
  Slot() = default;
  /// Gives the slot to a sequence. Removes the setup's lists from the front of both spans, or takes
  /// those of parameters from the slot `same`, if that is not null.
  void start(const SlotSetup& setup, std::span<const int32_t>& ids,
             std::span<const TokenBias>& biases, const Slot* same = nullptr);
  /// How the token at `position` is sampled, until the next call. The one before may be in flight.
  SampleRow sample_row(int32_t position);
  /// Appends the token that was sampled.
  void push(int32_t token);
  void add_block(int32_t index) { num_blocks_ = index + 1; }
  int32_t num_blocks() const { return num_blocks_; }

  const SlotSetup& setup() const { return setup_; }
  /// Whether memory was left for the setup's lists. If not, its sequence must not be drawn for.
  bool is_complete() const { return is_complete_; }
  /// How often it was started: a token drawn earlier is another sequence's (`cleanup.slots`).
  uint64_t num_starts() const { return num_starts_; }

 private:
  /// The lists of parameters, which do not change while sequences have them.
  struct Lists {
    std::vector<int32_t> masked_ids, allowed_ids, allowed_mask, bad_words;
    std::vector<TokenBias> biases;
  };
  Slot(const SlotSetup& setup, uint64_t num_starts, std::shared_ptr<const Lists> lists)
      : setup_(setup),
        num_starts_(num_starts),
        lists_(std::move(lists)),
        num_known_(std::min(setup.num_tokens, setup.num_prompt_tokens)) {}
  void count(int32_t token, int32_t in_answer);

  SlotSetup setup_;
  int32_t num_blocks_ = 0;
  uint64_t num_starts_ = 0;
  bool is_complete_ = true;
  std::shared_ptr<const Lists> lists_;  // never null while the slot is in use
  int32_t num_known_ = 0;               // tokens of the prompt and the answer
  std::vector<int32_t> answer_;         // its tokens; empty if there are no bad words
  std::vector<TokenCount> counts_;      // of prompt and answer; empty if there are no penalties
  std::unordered_map<int32_t, size_t> count_of_;
  std::vector<int32_t> masked_now_;
  std::vector<MaskedAfter> masked_after_;
};

/// The slots of one rank. It applies a step's changes to them and writes the first part of a Step.
class RankState {
 public:
  RankState(int64_t max_num_seqs, int64_t block_size)
      : slots_(to_size(max_num_seqs)), block_size_(block_size) {}

  /// Applies the setups and block updates of the input, and writes the step's first part. The
  /// SampleRows are valid until the slots change.
  void apply(const StepInput& input, Step& step);
  Slot& slot(int32_t i) { return slots_[to_size(i)]; }
  int64_t num_slots() const { return static_cast<int64_t>(slots_.size()); }

 private:
  std::vector<Slot> slots_;
  int64_t block_size_;
};

}  // namespace nanovllm
