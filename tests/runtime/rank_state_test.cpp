#include "nanovllm/runtime/rank_state.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>
#include <vector>

namespace nanovllm {
namespace {

/// What a row's lists say once its last token is known.
struct Effect {
  std::map<int32_t, int32_t> counts;
  std::set<int32_t> masked;
  bool operator==(const Effect&) const = default;
};

Effect effect(const SampleRow& row, int32_t last_token) {
  Effect result;
  for (const TokenCount& token : row.counts) result.counts[token.id] = token.in_answer;
  result.masked = {row.masked_ids.begin(), row.masked_ids.end()};
  if (row.last_token == kNoToken) return result;
  EXPECT_EQ(row.last_token, kTokenInFlight);
  ++result.counts[last_token];
  for (const MaskedAfter& masked : row.masked_after)
    if (masked.after == last_token) result.masked.insert(masked.id);
  return result;
}

TEST(RankState, RowsHaveBlocksForTheirTokens) {
  constexpr int32_t kNumSlots = 65536, kIndex = 999'999;
  RankState state(kNumSlots, 16);
  const auto apply = [&](const StepArrays& arrays) {
    std::vector<std::byte> buffer;
    const StepInput input = arrays.write(1, buffer);
    Step step;
    state.apply(input, step);
    return step.rows.size();
  };
  StepArrays arrays;
  arrays.setups.emplace_back().slot = kNumSlots - 1;
  arrays.block_updates = {{kNumSlots - 1, 0, 7}, {kNumSlots - 1, kIndex, 5}};
  arrays.rows = {{.slot = kNumSlots - 1, .start = 3, .num_tokens = 1},
                 {.slot = kNumSlots - 1, .start = kIndex * 16 + 1, .num_tokens = 2}};
  arrays.token_ids = {1, 1, 1};
  EXPECT_EQ(apply(arrays), 2U);
  EXPECT_EQ(state.slot(kNumSlots - 1).num_blocks(), kIndex + 1);
  arrays.block_updates = {{kNumSlots - 1, 0, 9}};  // the next sequence of the slot
  arrays.rows.pop_back();
  arrays.token_ids = {1};
  arrays.rows[0].start = 16;
  EXPECT_THROW(apply(arrays), std::logic_error);  // the other blocks were of the sequence before it
  arrays.rows[0].start = 15;
  EXPECT_EQ(apply(arrays), 1U);
}

TEST(Slot, TokenInFlightHasTheSameEffectAsAKnownOne) {
  std::mt19937 random(1);
  const auto id = [&] { return static_cast<int32_t>(random() % 3); };
  for (int round = 0; round < 200; ++round) {
    std::vector<int32_t> ids;
    SlotSetup setup;
    setup.presence_penalty = 1;
    setup.masked_before = 6;
    setup.num_masked_ids = 1;
    ids.push_back(7);
    for (int word = 0; word < 4; ++word) {
      const auto size = static_cast<int32_t>(random() % 4 + 1);
      ids.push_back(size);
      for (int32_t i = 0; i < size; ++i) ids.push_back(id());
      setup.num_bad_word_ids += size + 1;
    }
    setup.num_prompt_tokens = 3;
    setup.num_tokens = 3 + static_cast<int32_t>(random() % 3);
    for (int32_t i = 0; i < setup.num_tokens; ++i) ids.push_back(id());
    Slot ahead, after;
    std::span<const TokenBias> no_biases;
    for (Slot* slot : {&ahead, &after}) {
      std::span<const int32_t> lists = ids;
      slot->start(setup, lists, no_biases);
      EXPECT_TRUE(lists.empty());
    }
    for (int32_t position = setup.num_tokens; position < 12; ++position) {
      const int32_t token = id();
      const Effect early = effect(ahead.sample_row(position + 1), token);
      after.push(token);
      EXPECT_EQ(early, effect(after.sample_row(position + 1), kNoToken)) << position;
      ahead.push(token);
    }
  }
}

TEST(Slot, SharesTheListsOfAnotherSlot) {
  SlotSetup setup;
  setup.num_allowed_ids = 3;
  setup.num_biases = 1;
  const std::vector<int32_t> ids = {4, 5, 6};
  const std::vector<TokenBias> biases = {{7, 0.5f}};
  Slot first, second;
  std::span<const int32_t> lists = ids;
  std::span<const TokenBias> values = biases;
  first.start(setup, lists, values);
  EXPECT_TRUE(lists.empty());
  EXPECT_TRUE(values.empty());
  SlotSetup same;
  same.same_lists = 0;
  second.start(same, lists, values, &first);
  EXPECT_EQ(second.sample_row(1).allowed_ids.data(), first.sample_row(1).allowed_ids.data());
  EXPECT_EQ(second.sample_row(1).biases.size(), 1u);
  first.start(SlotSetup(), lists, values);  // another sequence, without lists
  EXPECT_TRUE(first.sample_row(1).allowed_ids.empty());
  EXPECT_EQ(second.sample_row(1).allowed_ids[2], 6);
  second.start(same, lists, values, &second);  // the next prompt of the same request
  EXPECT_EQ(second.sample_row(1).allowed_ids[2], 6);
}

}  // namespace
}  // namespace nanovllm
