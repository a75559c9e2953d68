#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <vector>

#include "nanovllm/runtime/rank_state.h"
#include "nanovllm/runtime/ranks/executor.h"

namespace nanovllm::testing {

inline uint64_t mix(uint64_t a, uint64_t b) {
  uint64_t x = a * 0x9e3779b97f4a7c15u + b + 0x632be59bd9b4e019u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

/// A fake model, which draws a token that depends only on the hash `chain` of the prefix.
struct FakeModel {
  int32_t vocab_size = 8;
  uint64_t not_finite_every =
      0;  ///< the logits of one prefix in this number are not finite; 0: of none
  uint64_t not_finite_chain = 0;  ///< nor those of the prefix with this hash

  static uint64_t extend(uint64_t chain, int32_t token) {
    return mix(chain, static_cast<uint64_t>(token));
  }
  bool is_finite(uint64_t chain) const {
    return chain != not_finite_chain &&
           (not_finite_every == 0 || mix(chain, 77) % not_finite_every != 0);
  }
  int32_t draw(uint64_t chain, uint64_t seed, int32_t choice) const {
    return static_cast<int32_t>(mix(chain ^ seed, static_cast<uint64_t>(choice)) %
                                static_cast<uint64_t>(vocab_size));
  }
  /// The first allowed token from draw()'s on, in a circle. One is allowed.
  int32_t draw(uint64_t chain, uint64_t seed, int32_t choice,
               std::span<const int32_t> allowed_mask) const {
    int32_t token = draw(chain, seed, choice);
    while (!has_bit(allowed_mask, token)) token = (token + 1) % vocab_size;
    return token;
  }
};

/// The recurrent state of the fake model after the first `position` tokens of a sequence.
struct FakeState {
  int64_t position = 0;
  uint64_t chain = 0;
  bool operator==(const FakeState&) const = default;
};

/// A rank with the fake model. Its cache stores for each position the token and a hash of the whole
/// prefix, because real K and V depend on all tokens before them. Every step reads the whole
/// context of every row through the block table, and throws if the cache contains anything else. So
/// it detects a block that is reused, shared or overwritten at the wrong time.
///
/// With snapshots, the model has a recurrent state too. Each row begins at the position of its
/// slot's state, with the state of its own prefix, and changes it; otherwise the step throws. As on
/// a device, a step of decodes is padded, with rows that name no slot
/// (`state.padding-writes-nothing`).
class FakeExecutor : public Executor {
 public:
  FakeExecutor(const FakeModel& model, int64_t max_num_seqs, int64_t num_blocks, int64_t block_size,
               int64_t max_model_len, std::optional<int64_t> num_snapshots = std::nullopt);

  void submit(const StepInput& input) override;
  void complete(const StepInput& late) override;
  const StepOutput& wait() override;

  int64_t num_submitted() const { return num_submitted_; }
  int64_t num_waited() const { return num_waited_; }
  /// The rows of the step submitted last.
  const std::vector<StepRow>& last_rows() const { return last_rows_; }
  const std::vector<StateCopy>& last_state_copies() const { return last_state_copies_; }
  const FakeState& state(int32_t slot) const { return states_.at(static_cast<size_t>(slot)); }
  /// How many ids the lists of sampling parameters had in all steps together.
  size_t num_setup_ids() const { return num_setup_ids_; }
  /// From step `number` (counted from 1) on, wait() throws.
  void fail_at(int64_t number) { fail_at_ = number; }
  /// From now on, submit() has no memory for a step with lists of sampling parameters.
  void run_out_of_memory() { has_memory_ = false; }

 private:
  struct Entry {
    int32_t token = -1;
    int32_t position = -1;
    uint64_t chain = 0;
  };
  /// An output that waits for the late part of its step.
  struct Late {
    size_t output;  // index
    int32_t slot;
    uint64_t chain;
  };
  StepOutput run(const StepInput& input);
  /// Draws a token. Without a mask all are allowed.
  void draw(OutputValue& value, int32_t slot, uint64_t chain, std::span<const int32_t> mask);
  void begin_states(const StepInput& input);
  void advance_states(const StepInput& input, const std::vector<uint64_t>& chains);
  void end_states(const StepInput& input);

  FakeModel model_;
  RankState state_;
  Step step_;
  DerivedArrays arrays_;
  KvCache kv_;
  int64_t block_size_;
  std::vector<int32_t> tables_;  // [max_num_seqs, max_blocks]
  std::vector<int32_t> last_tokens_;
  std::vector<Entry> cache_;
  std::deque<StepOutput> outputs_;
  std::vector<Late> late_;  // of the newest step
  StepOutput last_;
  std::vector<FakeState> states_;                    // by slot; none: the model has no state
  std::vector<std::optional<FakeState>> snapshots_;  // by number
  std::vector<StepRow> last_rows_;
  std::vector<StateCopy> last_state_copies_;
  int64_t num_submitted_ = 0, num_waited_ = 0, fail_at_ = -1;
  uint64_t step_number_ = 0;  // of the newest step
  bool has_memory_ = true;
  size_t num_setup_ids_ = 0;
};

}  // namespace nanovllm::testing
