#include <gtest/gtest.h>

#include <algorithm>

#include "test_engine.h"

namespace nanovllm::testing {
namespace {

using Kind = StateCopy::Kind;

// A model with recurrent states, with and without async scheduling. The fake executor checks that
// each row begins with the state of its own prefix.
class States : public ::testing::TestWithParam<bool> {
 protected:
  TestEngine::Options options() const {
    TestEngine::Options o;
    o.async_scheduling = GetParam();
    o.num_snapshots = 16;
    return o;
  }
};

int64_t count(const TestEngine& t, Kind kind) {
  return std::ranges::count(t.fake->last_state_copies(), kind, &StateCopy::kind);
}

// Runs the prompt to its end. Returns how many of its tokens were cached.
int64_t cached(TestEngine& t, const std::vector<int32_t>& prompt) {
  const uint64_t id = t.add(prompt, 1);
  t.run();
  EXPECT_EQ(t.outputs[id].token_ids, t.alone(prompt, 1));
  return t.outputs[id].num_cached_tokens;
}

TEST_P(States, SamePromptResumesBelowItsEnd) {
  for (const int64_t length : {4, 5, 8, 9, 11, 12}) {
    TestEngine t(options());
    EXPECT_EQ(cached(t, made_prompt(length)), 0);
    EXPECT_EQ(cached(t, made_prompt(length)), (length - 1) / 4 * 4) << length;
  }
}

TEST_P(States, LongerPromptResumesAndShorterOneDoesNot) {
  TestEngine t(options());
  EXPECT_EQ(cached(t, made_prompt(14)), 0);
  EXPECT_EQ(cached(t, made_prompt(15)), 12);
  EXPECT_EQ(cached(t, made_prompt(30)), 12);
  EXPECT_EQ(cached(t, made_prompt(12)), 0);  // it leaves a state at 8
  EXPECT_EQ(cached(t, made_prompt(11)), 8);
}

TEST_P(States, PromptsThatBranchResumeFromTheBranchPoint) {
  TestEngine t(options());
  const auto branch = [](int32_t family) {
    std::vector<int32_t> prompt = made_prompt(10);
    const auto tail = made_prompt(12, family);
    prompt.insert(prompt.end(), tail.begin(), tail.end());
    return prompt;
  };
  EXPECT_EQ(cached(t, branch(2)), 0);
  EXPECT_EQ(cached(t, branch(3)), 0);  // finds blocks of 8 tokens and stores the state after them
  EXPECT_EQ(cached(t, branch(4)), 8);
  EXPECT_EQ(cached(t, branch(5)), 8);
}

TEST_P(States, SecondTurnResumesAtTheLastBorderInTheAnswer) {
  for (const int64_t length : {5, 6, 7, 8}) {
    TestEngine t(options());
    auto turn = made_prompt(length);
    const uint64_t id = t.add(turn, 9);
    t.run();
    turn.insert(turn.end(), t.outputs[id].token_ids.begin(), t.outputs[id].token_ids.end());
    turn.push_back(5);
    // The last drawn token was not computed.
    EXPECT_EQ(cached(t, turn), (length + 9 - 1) / 4 * 4) << length;
  }
}

TEST_P(States, ChunkEndsWhereAStateIsSaved) {
  TestEngine t(options());
  t.add(made_prompt(11), 2);
  t.step();
  EXPECT_EQ(t.fake->last_rows()[0].num_tokens, 8);
  EXPECT_EQ(count(t, Kind::kSave), 1);
  t.step();
  EXPECT_EQ(t.fake->last_rows()[0].start, 8);
  EXPECT_EQ(t.fake->last_rows()[0].num_tokens, 3);
  EXPECT_EQ(count(t, Kind::kSave), 0);
  t.run();
}

TEST_P(States, IdenticalPromptsWaitForTheStateAndComputeTheirEnds) {
  TestEngine t(options());
  for (int i = 0; i < 3; ++i) t.add(made_prompt(22), 2);
  t.run();
  EXPECT_EQ(t.engine->stats().prefill_tokens, 22 + 2 + 2);
  for (const auto& [id, output] : t.outputs)
    EXPECT_EQ(output.token_ids, t.alone(made_prompt(22), 2));
}

TEST_P(States, ChoicesGetTheStateOfThePrompt) {
  for (const int64_t length : {7, 8, 9}) {
    TestEngine t(options());
    const uint64_t id = t.add(made_prompt(length), 6, 4);
    int64_t num_forks = 0;
    while (!t.engine->is_finished()) {
      const int64_t submitted = t.fake->num_submitted();
      t.step();
      if (t.fake->num_submitted() > submitted) num_forks += count(t, Kind::kFork);
    }
    EXPECT_EQ(num_forks, 3);
    EXPECT_EQ(t.engine->stats().prefill_tokens, length);
    for (int32_t choice = 0; choice < 4; ++choice)
      EXPECT_EQ(t.outputs[id].outputs[static_cast<size_t>(choice)].token_ids,
                t.alone(made_prompt(length), 6, choice));
  }
}

TEST_P(States, PreemptedSequenceResumesFromASnapshotOrFromTheStart) {
  for (const int64_t num_snapshots : {0, 1, 16}) {
    TestEngine::Options o = options();
    o.num_blocks = 10;
    o.num_snapshots = num_snapshots;
    TestEngine t(o);
    for (int32_t i = 0; i < 4; ++i) t.add(made_prompt(7, i), 20);
    int64_t num_restored = 0;
    while (!t.engine->is_finished()) {
      const int64_t submitted = t.fake->num_submitted();
      t.step();
      if (t.fake->num_submitted() > submitted) num_restored += count(t, Kind::kRestore);
    }
    EXPECT_GT(t.engine->stats().preemptions, 0);
    EXPECT_EQ(num_restored > 0, num_snapshots > 1);
    for (int32_t i = 0; i < 4; ++i)
      EXPECT_EQ(t.outputs[static_cast<uint64_t>(i)].token_ids, t.alone(made_prompt(7, i), 20));
    EXPECT_EQ(t.num_free(), 10);
  }
}

TEST_P(States, PaddedRowsWriteNoState) {  // state.padding-writes-nothing
  TestEngine t(options());
  t.add(made_prompt(5, 1), 20);
  const uint64_t second = t.add(made_prompt(6, 2), 3);
  while (t.outputs.count(second) == 0) t.step();
  const FakeState left = t.fake->state(1);
  EXPECT_GT(left.position, 6);
  while (!t.engine->is_finished()) {
    t.step();
    EXPECT_EQ(t.fake->state(1), left);
    for (const int32_t unused : {2, 3}) EXPECT_EQ(t.fake->state(unused), FakeState());
  }
}

TEST_P(States, StateOfAFailedSequenceIsNeverRestored) {
  TestEngine::Options o = options();
  const auto failing = made_prompt(9, 2);
  for (const int32_t id : failing)
    o.model.not_finite_chain = FakeModel::extend(o.model.not_finite_chain, id);
  TestEngine t(o);
  const uint64_t failed = t.add(failing, 3);
  t.run();
  EXPECT_EQ(t.outputs[failed].outputs[0].finish_reason, "error");
  auto longer = failing;
  longer.push_back(1);
  EXPECT_EQ(cached(t, longer), 0);
}

// With few snapshots hits become fewer, and answers stay the same.
TEST_P(States, EvictionChangesNoAnswer) {
  int64_t last_hits = -1;
  for (const int64_t num_snapshots : {0, 2, 16}) {
    TestEngine::Options o = options();
    o.num_snapshots = num_snapshots;
    o.num_blocks = 200;
    TestEngine t(o);
    for (int round = 0; round < 3; ++round)
      for (int32_t family = 0; family < 4; ++family) cached(t, made_prompt(13, family));
    EXPECT_GE(t.engine->stats().prefix_hits, last_hits);
    last_hits = t.engine->stats().prefix_hits;
  }
  EXPECT_EQ(last_hits, 2 * 4 * 12);
}

TEST_P(States, WithoutAPrefixCacheNoChunkIsCut) {
  TestEngine::Options o = options();
  o.enable_prefix_caching = false;
  TestEngine t(o);
  t.add(made_prompt(11), 2);
  t.step();
  EXPECT_EQ(t.fake->last_rows()[0].num_tokens, 11);
  EXPECT_EQ(count(t, Kind::kSave), 0);
  t.run();
  EXPECT_EQ(cached(t, made_prompt(11)), 0);
}

// Answers that end by a token have one more row with async scheduling, which may save a state.
TEST(StatesAndAsync, AsyncSchedulingDoesNotChangeWhatIsCached) {
  std::vector<int64_t> hits[2];
  for (const bool async : {true, false}) {
    TestEngine::Options o;
    o.model.vocab_size = 10;
    o.eos_token_ids = {3};
    o.async_scheduling = async;
    o.num_snapshots = 16;
    for (int32_t i = 0; i < 40; ++i) {
      std::vector<int32_t> turn = made_prompt(4 + i % 4, i);
      for (int32_t& token : turn) token %= 10;
      TestEngine t(o);
      const uint64_t id = t.add(turn, 25);
      t.run();
      turn.insert(turn.end(), t.outputs[id].token_ids.begin(), t.outputs[id].token_ids.end());
      const auto computed = static_cast<int64_t>(turn.size()) - 1;
      turn.push_back(1);
      hits[async].push_back(cached(t, turn));
      EXPECT_EQ(hits[async].back(), computed / 4 * 4);
    }
  }
  EXPECT_EQ(hits[0], hits[1]);
}

INSTANTIATE_TEST_SUITE_P(StepAhead, States, ::testing::Bool(),
                         [](const auto& info) { return info.param ? "on" : "off"; });

}  // namespace
}  // namespace nanovllm::testing
