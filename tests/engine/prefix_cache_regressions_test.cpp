#include <gtest/gtest.h>

#include "test_engine.h"

namespace nanovllm::testing {
namespace {

class PrefixCache : public ::testing::TestWithParam<bool> {
 protected:
  TestEngine::Options options() const {
    TestEngine::Options o;
    o.async_scheduling = GetParam();
    return o;
  }
};

TEST_P(PrefixCache, FullyCachedPromptComputesItsLastTokenAndStoresNothing) {
  TestEngine t(options());
  const auto prompt = made_prompt(8);
  t.add(prompt, 3);
  t.run();
  const uint64_t id = t.add(prompt, 3);
  t.step();
  ASSERT_EQ(t.fake->last_rows().size(), 1u);
  EXPECT_EQ(t.fake->last_rows()[0].start, 7);
  EXPECT_EQ(t.fake->last_rows()[0].num_tokens, 1);
  EXPECT_EQ(t.fake->last_rows()[0].store, 0);
  t.run();
  EXPECT_EQ(t.outputs[id].num_cached_tokens, 7);
  EXPECT_EQ(t.outputs[id].token_ids, t.alone(prompt, 3));
}

TEST_P(PrefixCache, IdenticalPromptsInOneStepAreComputedOnce) {
  TestEngine t(options());
  const auto prompt = made_prompt(10);
  const uint64_t one = t.add(prompt, 4), two = t.add(prompt, 4), three = t.add(prompt, 4);
  t.step();
  ASSERT_EQ(t.fake->last_rows().size(), 3u);
  EXPECT_EQ(t.fake->last_rows()[0].num_tokens, 10);
  EXPECT_EQ(t.fake->last_rows()[1].num_tokens,
            2);  // 8 of 10 tokens are full blocks of this very step
  EXPECT_EQ(t.num_free(), 16 - (3 + 1 + 1));
  t.engine->abort(one);
  t.run();
  for (const uint64_t id : {two, three}) EXPECT_EQ(t.outputs[id].token_ids, t.alone(prompt, 4));
  EXPECT_EQ(t.outputs[one].num_cached_tokens, 0);
  EXPECT_EQ(t.outputs[two].num_cached_tokens, 8);
  EXPECT_EQ(t.num_free(), 16);
}

TEST_P(PrefixCache, ChunksAreSharedOnlyWhenTheyAreInAStep) {
  TestEngine::Options o = options();
  o.max_num_batched_tokens = 9;
  TestEngine t(o);
  const auto prompt = made_prompt(20);
  const uint64_t one = t.add(prompt, 2);
  t.step();  // tokens 0 to 8 of the first: two full blocks
  const uint64_t two = t.add(prompt, 2);
  t.step();
  t.run();
  EXPECT_EQ(t.outputs[one].token_ids, t.alone(prompt, 2));
  EXPECT_EQ(t.outputs[two].token_ids, t.alone(prompt, 2));
  EXPECT_LE(t.outputs[two].num_cached_tokens, 16 + 3);
}

TEST_P(PrefixCache, ThousandPromptsWithOneSystemTextComputeItOnce) {
  TestEngine::Options o = options();
  o.num_blocks = 4000;
  o.max_num_seqs = 1000;
  o.max_num_batched_tokens = 4000;
  TestEngine t(o);
  constexpr int64_t kSystem = 24;
  for (int32_t i = 0; i < 1000; ++i) {
    std::vector<int32_t> prompt = made_prompt(kSystem);
    prompt.push_back(i % 900);
    t.add(prompt, 1);
  }
  t.run();
  EXPECT_EQ(t.engine->stats().prefill_tokens, kSystem + 1000);
}

TEST_P(PrefixCache, NumCachedTokensIsSetAtTheFirstAdmission) {
  TestEngine::Options o = options();
  o.num_blocks = 10;
  TestEngine t(o);
  std::vector<uint64_t> ids;
  for (int32_t i = 0; i < 4; ++i) ids.push_back(t.add(made_prompt(9, i), 20));
  t.run();
  EXPECT_GT(t.engine->stats().preemptions, 0);
  for (const uint64_t id : ids) EXPECT_EQ(t.outputs[id].num_cached_tokens, 0);

  TestEngine fresh(options());
  const auto prompt = made_prompt(10);
  const uint64_t choices = fresh.add(prompt, 5, 3);
  fresh.run();
  EXPECT_EQ(fresh.outputs[choices].num_cached_tokens, 0);
  const uint64_t again = fresh.add(prompt, 5, 3);
  fresh.run();
  EXPECT_EQ(fresh.outputs[again].num_cached_tokens, 8);
}

TEST_P(PrefixCache, ChoicesComputeThePromptOnce) {
  for (const bool caching : {true, false})
    for (const int64_t length : {7, 8, 9}) {
      TestEngine::Options o = options();
      o.enable_prefix_caching = caching;
      TestEngine t(o);
      const auto prompt = made_prompt(length);
      const uint64_t id = t.add(prompt, 6, 4);
      t.run();
      EXPECT_EQ(t.engine->stats().prefill_tokens, length);
      ASSERT_EQ(t.outputs[id].outputs.size(), 4u);
      for (int32_t choice = 0; choice < 4; ++choice)
        EXPECT_EQ(t.outputs[id].outputs[static_cast<size_t>(choice)].token_ids,
                  t.alone(prompt, 6, choice));
      EXPECT_EQ(t.num_free(), 16);
    }
}

TEST_P(PrefixCache, ChoicesWithoutASlotOrABlockWait) {
  for (const int64_t slots : {1, 2, 3}) {
    TestEngine::Options o = options();
    o.max_num_seqs = slots;
    o.num_blocks = 6;
    o.max_model_len = 24;
    TestEngine t(o);
    const auto prompt = made_prompt(10);
    const uint64_t id = t.add(prompt, 6, 5);
    const uint64_t other = t.add(made_prompt(10, 2), 6);
    t.run();
    ASSERT_EQ(t.outputs[id].outputs.size(), 5u);
    for (int32_t choice = 0; choice < 5; ++choice)
      EXPECT_EQ(t.outputs[id].outputs[static_cast<size_t>(choice)].token_ids,
                t.alone(prompt, 6, choice));
    EXPECT_EQ(t.outputs[other].token_ids, t.alone(made_prompt(10, 2), 6));
    EXPECT_EQ(t.num_free(), 6);
  }
}

TEST_P(PrefixCache, SecondTurnFindsPromptAndAnswer) {
  TestEngine t(options());
  const auto prompt = made_prompt(6);
  const uint64_t id = t.add(prompt, 8);
  t.run();
  std::vector<int32_t> second = prompt;
  second.insert(second.end(), t.outputs[id].token_ids.begin(), t.outputs[id].token_ids.end());
  second.push_back(5);
  const uint64_t turn = t.add(second, 2);
  t.run();
  // 13 of 14 tokens were computed (the last one drawn was not): 3 blocks of 4.
  EXPECT_EQ(t.outputs[turn].num_cached_tokens, 12);
  EXPECT_EQ(t.outputs[turn].token_ids, t.alone(second, 2));
}

TEST_P(PrefixCache, DifferentSaltsShareNoBlocks) {
  TestEngine t(options());
  const auto prompt = made_prompt(9);
  SamplingParams params;
  params.max_tokens = 2;
  std::vector<uint64_t> ids;
  // XXH64 with seed 1 gives the two long ones the same hash.
  for (const char* salt : {"", "a", "b", "tenant-a", "t0002fa3FcMgB>7h", "a"}) {
    ids.push_back(t.engine->add_request(prompt, params, salt));
    t.run();
  }
  for (size_t i = 0; i < 5; ++i) EXPECT_EQ(t.outputs[ids[i]].num_cached_tokens, 0) << i;
  EXPECT_EQ(t.outputs[ids[5]].num_cached_tokens, 8);
}

TEST_P(PrefixCache, RowsWithoutFiniteLogitsEndAloneAndAreNotCached) {
  TestEngine::Options o = options();
  o.model.not_finite_every = 7;
  o.num_blocks = 400;
  TestEngine t(o);
  int64_t num_errors = 0, num_whole = 0;
  std::vector<std::vector<int32_t>> failed;  // at their first token
  for (int32_t i = 0; i < 40; ++i) t.add(made_prompt(5, i), 6);
  t.run();
  for (const auto& [id, output] : t.outputs) {
    const auto whole =
        t.alone(output.prompt_token_ids, static_cast<int64_t>(output.token_ids.size()));
    EXPECT_EQ(output.token_ids, whole);
    if (output.finish_reason == "error") {
      ++num_errors;
      if (output.token_ids.empty()) failed.push_back(output.prompt_token_ids);
      EXPECT_NE(output.error.find("not finite"), std::string::npos);
      EXPECT_FALSE(output.is_request_at_fault);
    } else {
      ++num_whole;
      EXPECT_EQ(output.token_ids.size(), 6u);
    }
  }
  EXPECT_GT(num_errors, 5);
  EXPECT_GT(num_whole, 5);
  EXPECT_EQ(t.num_free(), 400);
  ASSERT_FALSE(failed.empty());
  for (const auto& prompt : failed) {
    const uint64_t again = t.add(prompt, 1);
    t.run();
    EXPECT_EQ(t.outputs[again].num_cached_tokens, 0);
  }
}

INSTANTIATE_TEST_SUITE_P(StepAhead, PrefixCache, ::testing::Bool(),
                         [](const auto& info) { return info.param ? "on" : "off"; });

}  // namespace
}  // namespace nanovllm::testing
