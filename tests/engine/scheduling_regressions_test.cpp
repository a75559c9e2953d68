#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

#include "nanovllm/base/error.h"
#include "test_engine.h"

namespace nanovllm::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

// Every test runs with and without async scheduling.
class Scheduling : public ::testing::TestWithParam<bool> {
 protected:
  TestEngine::Options options() const {
    TestEngine::Options o;
    o.async_scheduling = GetParam();
    return o;
  }
};

TEST_P(Scheduling, OneSequenceThatFillsTheCacheEndsByLength) {
  TestEngine::Options o = options();
  o.num_blocks = 4;
  o.max_model_len = 16;
  TestEngine t(o);
  const auto prompt = made_prompt(10);
  const uint64_t id = t.add(prompt, 1000);
  t.run();
  EXPECT_EQ(t.outputs[id].token_ids, t.alone(prompt, 6));
  EXPECT_EQ(t.outputs[id].finish_reason, "length");
  const uint64_t next = t.add(made_prompt(3), 2);
  t.run();
  EXPECT_EQ(t.outputs[next].token_ids, t.alone(made_prompt(3), 2));
  EXPECT_EQ(t.num_free(), 4);
}

TEST_P(Scheduling, ResumedSequenceComputesAllTokensThatAreNotCached) {
  TestEngine::Options o = options();
  o.num_blocks = 10;
  TestEngine t(o);
  std::map<uint64_t, std::vector<int32_t>> expected;
  for (int32_t i = 0; i < 4; ++i)
    expected[t.add(made_prompt(7, i), 20)] = t.alone(made_prompt(7, i), 20);
  t.run();
  EXPECT_GT(t.engine->stats().preemptions, 0);
  for (const auto& [id, tokens] : expected) EXPECT_EQ(t.outputs[id].token_ids, tokens) << id;
  EXPECT_EQ(t.num_free(), 10);
}

TEST_P(Scheduling, BlocksOfAFailedSequenceAreNeverShared) {
  TestEngine::Options o = options();
  o.num_blocks = 5;
  o.max_model_len = 20;
  const auto failing = made_prompt(8, 2);
  for (const int32_t id : failing)
    o.model.not_finite_chain = FakeModel::extend(o.model.not_finite_chain, id);
  TestEngine t(o);
  t.add(made_prompt(8, 1), 3);
  // With async scheduling the first one takes its last block before its logits are read.
  const uint64_t failed = t.add(failing, 3);
  t.run();
  EXPECT_EQ(t.outputs[failed].outputs[0].finish_reason, "error");
  EXPECT_EQ(t.engine->stats().preemptions, GetParam() ? 1 : 0);
  auto longer = failing;
  longer.push_back(1);
  const uint64_t next = t.add(longer, 1);
  t.run();
  EXPECT_EQ(t.outputs[next].num_cached_tokens, 0);
  EXPECT_EQ(t.outputs[next].token_ids, t.alone(longer, 1));
}

TEST_P(Scheduling, SequenceThatWasNotScheduledHoldsNoBlocks) {
  TestEngine::Options o = options();
  o.max_num_batched_tokens = 8;
  TestEngine t(o);
  t.add(made_prompt(8, 1), 4);
  t.add(made_prompt(8, 2), 4);
  t.add(made_prompt(8, 3), 4);
  t.step();
  EXPECT_EQ(t.engine->stats().num_running, 1);
  EXPECT_EQ(t.num_free(), 16 - 2);
}

TEST_P(Scheduling, PreemptedSequenceRecomputesItsWholePrefix) {
  TestEngine::Options o = options();
  o.num_blocks = 6;
  o.max_model_len = 24;
  o.enable_prefix_caching = false;
  TestEngine t(o);
  t.add(made_prompt(8, 1), 16);
  const auto prompt = made_prompt(8, 2);
  const uint64_t second = t.add(prompt, 16);
  bool seen = false;
  while (!t.engine->is_finished()) {
    const int64_t running = t.engine->stats().num_running;
    t.step();
    if (t.engine->stats().preemptions == 0 || running != 0 || t.fake->last_rows().empty()) continue;
    if (seen) continue;
    // The first row after the preemption: the prompt and the drawn tokens in one chunk.
    const StepRow& row = t.fake->last_rows().back();
    if (row.num_tokens > 1) {
      EXPECT_EQ(row.start, 0);
      EXPECT_GT(row.num_tokens, 8);
      seen = true;
    }
  }
  EXPECT_GT(t.engine->stats().preemptions, 0);
  EXPECT_TRUE(seen);
  EXPECT_EQ(t.outputs[second].token_ids, t.alone(prompt, 16));
}

TEST_P(Scheduling, EveryStepAdvancesEveryAnswerWhilePromptsArrive) {
  TestEngine::Options o = options();
  o.num_blocks = 64;
  o.max_num_batched_tokens = 6;
  TestEngine t(o);
  const uint64_t first = t.add(made_prompt(2), 30);
  int64_t num_tokens = 0, steps = 0;
  while (t.outputs.count(first) == 0) {
    t.add(made_prompt(30, static_cast<int32_t>(100 + steps)), 1);  // a long prompt with each step
    for (const RequestUpdate& update : t.engine->step()) {
      if (update.request_id == first) num_tokens += static_cast<int64_t>(update.token_ids.size());
      if (update.finished) t.outputs[update.request_id] = *update.finished;
    }
    ++steps;
    ASSERT_GE(num_tokens, steps - (GetParam() ? 1 : 0));
  }
  EXPECT_EQ(num_tokens, 30);
}

TEST_P(Scheduling, LengthsAroundBlockEdges) {
  for (const int64_t budget : {4, 5, 7, 64})
    for (const int64_t length : {1, 3, 4, 5, 7, 8, 9, 15, 16, 17}) {
      TestEngine::Options o = options();
      o.max_num_batched_tokens = budget;
      TestEngine t(o);
      std::map<uint64_t, std::vector<int32_t>> expected;
      for (const int64_t num_tokens : {1, 3, 4, 5, 9}) {
        const auto prompt = made_prompt(length, static_cast<int32_t>(num_tokens % 2));
        expected[t.add(prompt, num_tokens)] = t.alone(prompt, num_tokens);
      }
      t.run();
      for (const auto& [id, tokens] : expected)
        EXPECT_EQ(t.outputs[id].token_ids, tokens)
            << "prompt of " << length << ", budget " << budget;
      EXPECT_EQ(t.num_free(), 16);
    }
}

TEST_P(Scheduling, AbortInEveryState) {
  TestEngine::Options o = options();
  o.num_blocks = 10;
  o.max_num_batched_tokens = 8;
  // A request is aborted after this number of steps, when it is waiting, half prefilled, running,
  // preempted or in flight.
  for (int64_t after = 0; after < 40; ++after)
    for (size_t which = 0; which < 4; ++which) {
      TestEngine t(o);
      std::vector<uint64_t> ids;
      for (int32_t i = 0; i < 4; ++i)
        ids.push_back(t.add(made_prompt(9 + i, i), 12, i == 1 ? 3 : 1));
      for (int64_t i = 0; i < after && !t.engine->is_finished(); ++i) t.step();
      const bool was_running = t.outputs.count(ids[which]) == 0;
      EXPECT_EQ(t.engine->abort(ids[which]), was_running);
      EXPECT_FALSE(t.engine->abort(ids[which]));
      t.run();
      EXPECT_EQ(t.num_free(), 10);
      for (size_t i = 0; i < 4; ++i) {
        const RequestOutput& output = t.outputs[ids[i]];
        const auto whole =
            t.alone(made_prompt(9 + static_cast<int64_t>(i), static_cast<int32_t>(i)), 12);
        if (i == which && was_running) {
          EXPECT_EQ(output.finish_reason == "abort" || output.outputs.size() == 3, true);
          EXPECT_EQ(
              output.token_ids,
              std::vector<int32_t>(whole.begin(),
                                   whole.begin() + static_cast<int64_t>(output.token_ids.size())));
        } else {
          EXPECT_EQ(output.token_ids, whole);
          EXPECT_EQ(output.finish_reason, "length");
        }
      }
    }
}

TEST_P(Scheduling, AbortAndAddWhileUpdatesAreRead) {
  TestEngine t(options());
  SamplingParams params;
  params.max_tokens = 20;
  const uint64_t id = t.engine->add_request(made_prompt(4), params);
  const uint64_t other = t.add(made_prompt(6), 20);
  for (int64_t num_updates = 0; num_updates < 3;) {
    for (const RequestUpdate& update : t.engine->step()) {
      if (update.request_id != id || ++num_updates != 3) continue;
      EXPECT_TRUE(t.engine->abort(id));
      EXPECT_TRUE(t.engine->abort(other));
      t.add(made_prompt(5), 2);
    }
  }
  t.run();
  EXPECT_EQ(t.outputs[id].finish_reason, "abort");
  EXPECT_EQ(t.outputs[other].finish_reason, "abort");
  EXPECT_EQ(t.outputs.size(), 3u);
  EXPECT_EQ(t.num_free(), 16);
}

TEST_P(Scheduling, LastChunkThatEndsExactlyAtTheBudget) {
  TestEngine::Options o = options();
  o.max_num_batched_tokens = 8;
  TestEngine t(o);
  const uint64_t one = t.add(made_prompt(16, 1), 3), two = t.add(made_prompt(8, 2), 3);
  t.run();
  EXPECT_EQ(t.outputs[one].token_ids, t.alone(made_prompt(16, 1), 3));
  EXPECT_EQ(t.outputs[two].token_ids, t.alone(made_prompt(8, 2), 3));
}

TEST_P(Scheduling, OddNumbersOfSequences) {
  for (const int64_t max_num_seqs : {1, 3, 7, 500}) {
    TestEngine::Options o = options();
    o.max_num_seqs = max_num_seqs;
    o.max_num_batched_tokens = max_num_seqs + 3;
    o.num_blocks = 3000;
    TestEngine t(o);
    std::map<uint64_t, std::vector<int32_t>> expected;
    for (int32_t i = 0; i < max_num_seqs + 5; ++i)
      expected[t.add(made_prompt(1 + i % 9, i), 6)] = t.alone(made_prompt(1 + i % 9, i), 6);
    int64_t most = 0;
    while (!t.engine->is_finished()) {
      t.step();
      most = std::max(most, t.engine->stats().num_running);
    }
    EXPECT_LE(most, max_num_seqs);
    for (const auto& [id, tokens] : expected) ASSERT_EQ(t.outputs[id].token_ids, tokens);
  }
}

TEST_P(Scheduling, PromptsThatCannotFitAreRefusedWithTheNumbers) {
  TestEngine t(options());
  EXPECT_THAT([&] { t.add(made_prompt(40), 1); },
              ThrowsMessage<UserError>(AllOf(HasSubstr("40 tokens"), HasSubstr("at most 39"))));
  EXPECT_THAT([&] { t.add({}, 1); }, ThrowsMessage<UserError>(HasSubstr("empty")));
  EXPECT_THAT(
      [&] {
        t.add({5, 1000}, 1);
      },
      ThrowsMessage<UserError>(AllOf(HasSubstr("1000"), HasSubstr("0 to 999"))));
  EXPECT_THAT([&] { t.add({-1}, 1); }, ThrowsMessage<UserError>(HasSubstr("-1")));
  EXPECT_TRUE(t.engine->is_finished());

  const uint64_t one = t.add(made_prompt(1), 1);
  const uint64_t longest = t.add(made_prompt(39), 50);
  const uint64_t past = t.add(made_prompt(20), 1000);
  t.run();
  EXPECT_EQ(t.outputs[one].token_ids, t.alone(made_prompt(1), 1));
  EXPECT_EQ(t.outputs[longest].token_ids, t.alone(made_prompt(39), 1));
  EXPECT_EQ(t.outputs[past].token_ids, t.alone(made_prompt(20), 20));
  EXPECT_EQ(t.outputs[past].finish_reason, "length");
}

TEST_P(Scheduling, NearlyFullCacheMakesProgress) {
  TestEngine::Options o = options();
  o.num_blocks = 11;
  o.max_num_batched_tokens = 6;  // prompts come in pieces
  TestEngine t(o);
  constexpr int64_t kRequests = 12, kPrompt = 17, kAnswer = 20;
  for (int32_t i = 0; i < kRequests; ++i) t.add(made_prompt(kPrompt, i), kAnswer);
  // If they ran one after another, each would take 3 steps for its prompt, 19 more for its answer,
  // and one in which its last token is read.
  EXPECT_LE(t.run(), kRequests * (3 + kAnswer + 1));
  EXPECT_EQ(static_cast<int64_t>(t.outputs.size()), kRequests);
}

TEST_P(Scheduling, TheOldestIsNeverPreempted) {
  TestEngine::Options o = options();
  o.num_blocks = 10;
  TestEngine t(o);
  const uint64_t oldest = t.add(made_prompt(4, 0), 30);
  for (int32_t i = 1; i < 4; ++i) t.add(made_prompt(12, i), 20);
  int64_t steps = 0;
  for (; t.outputs.count(oldest) == 0; ++steps) t.step();
  EXPECT_GT(t.engine->stats().preemptions, 0);
  EXPECT_LE(steps, 30 + 1);
}

TEST_P(Scheduling, StepsThatFailEndTheEngineWithAnException) {
  TestEngine t(options());
  t.fake->fail_at(3);
  t.add(made_prompt(4), 10);
  EXPECT_THAT([&] { t.run(); }, ThrowsMessage<EngineDead>(HasSubstr("the device fell off")));
  EXPECT_THROW(t.engine->step(), EngineDead);
  EXPECT_THROW(t.add(made_prompt(4), 10), EngineDead);
  EXPECT_THROW(t.engine->is_finished(), EngineDead);
}

INSTANTIATE_TEST_SUITE_P(StepAhead, Scheduling, ::testing::Bool(),
                         [](const auto& info) { return info.param ? "on" : "off"; });

int64_t num_hashes = 0;
uint64_t counted_hash(uint64_t previous, std::span<const int32_t> ids) {
  ++num_hashes;
  return block_hash(previous, ids);
}

// A prompt that waits for blocks while another one is computed or answered is not read in each
// step.
TEST(Scheduler, PromptThatFindsTooFewBlocksIsReadAgainOnlyWhenSomeAreFreed) {
  EngineConfig config;
  config.max_num_seqs = 4;
  config.max_num_batched_tokens = 64;
  config.max_model_len = 56;
  CacheManager cache(BlockPool(14, 4, true, counted_hash));
  Scheduler scheduler(config, cache);
  const auto add = [&](uint64_t id, int64_t max_tokens) {
    std::vector<std::unique_ptr<Sequence>> choices;
    choices.push_back(std::make_unique<Sequence>());
    Sequence& seq = *choices[0];
    seq.id = id;
    seq.params = std::make_shared<const RequestParams>();
    seq.max_tokens = max_tokens;
    seq.token_ids.resize(40);
    std::iota(seq.token_ids.begin(), seq.token_ids.end(), 0);
    seq.token_ids[20] = static_cast<int32_t>(id);  // half of the prompts is equal
    seq.num_prompt_tokens = 40;
    scheduler.add(std::move(choices));
  };
  std::vector<SequenceUpdate> updates;
  const auto step = [&] {
    StepPlan plan;
    scheduler.schedule(plan);
    StepOutput output;
    for (const ScheduledOutput& wanted : plan.outputs) output.values.push_back({wanted.seq->id});
    scheduler.postprocess(plan, output, updates);
  };
  add(0, 15);
  add(1, 1);
  num_hashes = 0;
  step();
  // Two lookups up to their first miss, and the blocks of the first prompt.
  EXPECT_EQ(num_hashes, 1 + 6 + 10);
  EXPECT_EQ(scheduler.num_waiting(), 1);
  const int64_t after_first = num_hashes;
  for (int i = 0; i < 10; ++i) step();
  EXPECT_EQ(scheduler.num_waiting(), 1);
  EXPECT_LE(num_hashes - after_first, 3);  // of the blocks that the answer fills
  while (!scheduler.is_finished()) step();
  EXPECT_EQ(scheduler.stats().prefix_hits, 20);
}

TEST(StepAhead, NextStepIsSubmittedBeforeTheTokensOfTheLastAreRead) {
  for (const bool async : {true, false}) {
    TestEngine::Options o;
    o.async_scheduling = async;
    TestEngine t(o);
    t.add(made_prompt(4), 10);
    for (int64_t k = 1; k <= 5; ++k) {
      t.step();
      EXPECT_EQ(t.fake->num_submitted(), k);
      EXPECT_EQ(t.fake->num_waited(), async ? k - 1 : k);
    }
    t.run();
    // The scheduler knows in advance which sequences end by length, so no submitted step is
    // useless.
    EXPECT_EQ(t.fake->num_submitted(), 10);
    EXPECT_EQ(t.outputs.size(), 1u);
  }
}

TEST(StepAhead, NothingDrawnAfterTheEndReachesTheAnswer) {
  TestEngine::Options o;
  o.model.vocab_size = 10;
  o.eos_token_ids = {3};
  std::vector<std::vector<int32_t>> answers[2];
  std::vector<int64_t> cached[2];
  for (const bool async : {true, false}) {
    o.async_scheduling = async;
    TestEngine t(o);
    for (int32_t i = 0; i < 30; ++i) {
      std::vector<int32_t> prompt = made_prompt(6, i);
      for (int32_t& token : prompt) token %= 10;
      t.add(prompt, 30);
    }
    t.run();
    for (const auto& [id, output] : t.outputs) {
      answers[async].push_back(output.token_ids);
      const auto end = std::ranges::find(output.token_ids, 3);
      EXPECT_EQ(end == output.token_ids.end(), output.finish_reason == "length");
      EXPECT_TRUE(end == output.token_ids.end() || end + 1 == output.token_ids.end());
    }
    EXPECT_EQ(t.num_free(), 16);
    // Async scheduling does not change the prefix cache either: a second turn has the same hits.
    for (const auto& [id, output] : std::map(t.outputs)) {
      TestEngine fresh(o);
      fresh.add(output.prompt_token_ids, 30);
      fresh.run();
      std::vector<int32_t> second = output.prompt_token_ids;
      second.insert(second.end(), output.token_ids.begin(), output.token_ids.end());
      if (second.size() >= 39) continue;
      second.push_back(1);
      const uint64_t turn = fresh.add(second, 1);
      fresh.run();
      cached[async].push_back(fresh.outputs[turn].num_cached_tokens);
      EXPECT_EQ(cached[async].back(), (second.size() - 2) / 4 * 4);
    }
  }
  EXPECT_EQ(answers[0], answers[1]);
  EXPECT_EQ(cached[0], cached[1]);
}

// The lists of parameters are sent once for all choices and prompts that have them.
TEST_P(Scheduling, ListsOfARequestAreSentOnce) {
  TestEngine t(options());
  SamplingParams params;
  params.max_tokens = 12;
  params.allowed_token_ids = {{1, 2, 3, 4, 5}};
  params.n = 3;
  t.engine->add_request(made_prompt(6, 2), params);
  t.engine->add_request(made_prompt(7, 3), params);  // equal parameters
  t.run();
  EXPECT_EQ(t.fake->num_setup_ids(), 5u);
  params.allowed_token_ids = {{6}};
  params.n = 1;
  t.engine->add_request(made_prompt(6, 2), params);
  t.run();
  EXPECT_EQ(t.fake->num_setup_ids(), 6u);
}

// Requests that start in the same step, and those that run, are not affected.
TEST_P(Scheduling, RequestWhoseListsDoNotFitInMemoryEndsAlone) {
  TestEngine t(options());
  const uint64_t running = t.add(made_prompt(5, 1), 12);
  t.step();
  t.fake->run_out_of_memory();
  SamplingParams params;
  params.max_tokens = 12;
  params.allowed_token_ids = {{1, 2, 3}};
  params.n = 2;
  const uint64_t large = t.engine->add_request(made_prompt(6, 2), params);
  const uint64_t beside = t.add(made_prompt(7, 3), 12);
  t.run();
  EXPECT_EQ(t.outputs[running].token_ids, t.alone(made_prompt(5, 1), 12));
  EXPECT_EQ(t.outputs[beside].token_ids, t.alone(made_prompt(7, 3), 12));
  ASSERT_EQ(t.outputs[large].outputs.size(), 2u);
  for (const CompletionOutput& answer : t.outputs[large].outputs) {
    EXPECT_EQ(answer.finish_reason, "error");
    EXPECT_THAT(answer.error, HasSubstr("not enough memory"));
    EXPECT_FALSE(answer.is_request_at_fault);
  }
  EXPECT_EQ(t.num_free(), 16);
}

}  // namespace
}  // namespace nanovllm::testing
