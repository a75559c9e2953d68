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

}  // namespace
}  // namespace nanovllm
