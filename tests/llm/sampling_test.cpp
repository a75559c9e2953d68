#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "goldens.h"
#include "nanovllm/llm.h"

namespace nanovllm::testing {
namespace {

constexpr int64_t kCache = 64 << 20;

// The probability that a chi-square variable with `degrees` degrees of freedom exceeds `x`, by
// Wilson and Hilferty's cube-root approximation. Its error is about 1e-4 from 10 degrees on.
double chi_square_tail(double x, double degrees) {
  const double variance = 2.0 / (9.0 * degrees);
  const double z = (std::cbrt(x / degrees) - (1.0 - variance)) / std::sqrt(variance);
  return 0.5 * std::erfc(z / std::sqrt(2.0));
}

TEST(Sampling, DistributionIsTheReferences) {
  const Json row = goldens("sampling_tiny-tales").at(0);
  LLM llm(kTinyTales, {.dtype = "float32", .kv_cache_memory_bytes = kCache});
  constexpr int64_t kDraws = 6'000, kChoices = 100;
  for (const Json& c : row["cases"]) {
    SCOPED_TRACE(c.dump().substr(0, 80));
    SamplingParams params;
    params.temperature = c["temperature"].get<double>();
    params.top_k = c["top_k"].get<int64_t>();
    params.top_p = c["top_p"].get<double>();
    params.max_tokens = 1;
    params.n = kChoices;
    std::vector<SamplingParams> all;
    for (uint64_t seed = 0; seed < kDraws / kChoices; ++seed) {
      params.seed = seed;
      all.push_back(params);
    }
    const std::vector<std::vector<int32_t>> prompts(
        all.size(), row["prompt_token_ids"].get<std::vector<int32_t>>());
    std::map<int32_t, double> drawn;
    for (const RequestOutput& output : llm.generate(prompts, all, false))
      for (const CompletionOutput& answer : output.outputs) ++drawn[answer.token_ids.at(0)];
    EXPECT_LE(static_cast<int64_t>(drawn.size()), c["support"].get<int64_t>());
    // Each token with at least five expected draws is a bin, and all others together are one bin.
    double chi_square = 0, rest_expected = kDraws, rest_drawn = kDraws;
    int64_t bins = 1;
    for (const Json& top : c["top"]) {
      const double expected = kDraws * top[1].get<double>();
      if (expected < 5) continue;
      const double count = drawn[top[0].get<int32_t>()];
      chi_square += (count - expected) * (count - expected) / expected;
      rest_expected -= expected;
      rest_drawn -= count;
      ++bins;
    }
    if (rest_expected >= 5)
      chi_square += (rest_drawn - rest_expected) * (rest_drawn - rest_expected) / rest_expected;
    else --bins;
    EXPECT_GT(chi_square_tail(chi_square, static_cast<double>(bins - 1)), 1e-4)
        << "chi-square " << chi_square << " in " << bins << " bins";
  }
}

std::vector<std::vector<int32_t>> story_prompts() {
  std::vector<std::vector<int32_t>> prompts;
  for (const Json& row : goldens("tiny-tales"))
    if (row["prompt_token_ids"].size() < 60)
      prompts.push_back(row["prompt_token_ids"].get<std::vector<int32_t>>());
  return prompts;
}

SamplingParams seeded(uint64_t seed) {
  SamplingParams params;
  params.temperature = 0.9;
  params.top_p = 0.95;
  params.top_k = 50;
  params.max_tokens = 40;
  params.seed = seed;
  return params;
}

TEST(Sampling, SeededRequestGivesTheSameTokensAloneInABatchAndPreempted) {
  const auto prompts = story_prompts();
  const std::vector<int32_t>& prompt = prompts.at(12);
  LLM llm(kTinyTales, {.dtype = "float32", .kv_cache_memory_bytes = kCache});
  const auto alone = generate_one(llm, prompt, seeded(11)).token_ids;
  EXPECT_NE(generate_one(llm, prompt, seeded(12)).token_ids, alone);

  std::vector<std::vector<int32_t>> crowd;
  std::vector<SamplingParams> params;
  for (size_t i = 0; i <= 200; ++i) {
    crowd.push_back(i == 100 ? prompt : prompts[i % prompts.size()]);
    params.push_back(seeded(i == 100 ? 11 : 1000 + i));
    if (i % 3 == 0 && i != 100) params.back().seed.reset();
    if (i % 5 == 1) params.back().max_tokens = 1 + static_cast<int64_t>(i) % 30;
  }
  EXPECT_EQ(llm.generate(crowd, params, false)[100].token_ids, alone);

  LLM small(kTinyTales, {.dtype = "float32",
                         .max_model_len = 256,
                         .max_num_seqs = 64,
                         .max_num_batched_tokens = 100,
                         .block_size = 16,
                         .num_gpu_blocks_override = 40,
                         .async_scheduling = false});
  const auto crowded = small.generate(crowd, params, false);
  EXPECT_EQ(crowded[100].token_ids, alone);
}

TEST(Sampling, EngineSeedMakesARunRepeatable) {
  const auto prompts = story_prompts();
  SamplingParams params = seeded(0);
  params.seed.reset();
  std::vector<std::vector<std::vector<int32_t>>> runs;
  for (const uint64_t seed : {5, 5, 6}) {
    LLM llm(kTinyTales, {.dtype = "float32", .kv_cache_memory_bytes = kCache, .seed = seed});
    runs.emplace_back();
    for (const RequestOutput& output : llm.generate(prompts, params, false))
      runs.back().push_back(output.token_ids);
  }
  EXPECT_EQ(runs[0], runs[1]);
  EXPECT_NE(runs[0], runs[2]);
}

TEST(Sampling, ChoicesDifferAndTheFirstIsTheRequestsOwn) {
  LLM llm(kTinyTales, {.dtype = "float32", .kv_cache_memory_bytes = kCache});
  SamplingParams params = seeded(3);
  const std::vector<int32_t> prompt = story_prompts().at(13);
  const auto one = generate_one(llm, prompt, params);
  params.n = 5;
  const auto five = generate_one(llm, prompt, params);
  ASSERT_EQ(five.outputs.size(), 5u);
  EXPECT_EQ(five.outputs[0].token_ids, one.token_ids);
  for (size_t i = 1; i < 5; ++i) EXPECT_NE(five.outputs[i].token_ids, five.outputs[0].token_ids);
}

TEST(Sampling, MinTokensDelaysEveryEnd) {
  LLM llm(kTinyTales, {.dtype = "float32", .kv_cache_memory_bytes = kCache});
  SamplingParams params;
  params.temperature = 0;
  params.max_tokens = 64;
  const std::vector<Json> rows = goldens("tiny-tales");
  const std::vector<int32_t> prompt =
      rows[0]["prompt_token_ids"].get<std::vector<int32_t>>();  // ends after 57 tokens
  const auto plain = generate_one(llm, prompt, params);
  ASSERT_EQ(plain.finish_reason, "stop");
  const auto length = static_cast<int64_t>(plain.token_ids.size());
  params.min_tokens = length - 1;
  EXPECT_EQ(generate_one(llm, prompt, params).token_ids, plain.token_ids);
  params.min_tokens = length;
  const auto longer = generate_one(llm, prompt, params);
  EXPECT_GT(static_cast<int64_t>(longer.token_ids.size()), length);
  EXPECT_TRUE(
      std::equal(plain.token_ids.begin(), plain.token_ids.end() - 1, longer.token_ids.begin()));
  EXPECT_NE(longer.token_ids[static_cast<size_t>(length) - 1], plain.token_ids.back());

  params.min_tokens = 0;
  params.ignore_eos = true;
  EXPECT_EQ(generate_one(llm, prompt, params).token_ids.size(), 64u);
}

TEST(Sampling, StopTokenIdsEndTheAnswerAndAreNamed) {
  LLM llm(kTinyTales, {.dtype = "float32", .kv_cache_memory_bytes = kCache});
  SamplingParams params;
  params.temperature = 0;
  const std::vector<int32_t> prompt =
      goldens("tiny-tales")[0]["prompt_token_ids"].get<std::vector<int32_t>>();
  const auto plain = generate_one(llm, prompt, params);
  const int32_t stop = plain.token_ids[20];
  const auto first = std::ranges::find(plain.token_ids, stop) - plain.token_ids.begin();
  params.stop_token_ids = {stop};
  const auto stopped = generate_one(llm, prompt, params);
  EXPECT_EQ(stopped.token_ids,
            std::vector<int32_t>(plain.token_ids.begin(), plain.token_ids.begin() + first + 1));
  EXPECT_EQ(stopped.finish_reason, "stop");
  EXPECT_EQ(stopped.stop_reason, StopReason(stop));
  EXPECT_EQ(plain.text.find(stopped.text), 0u);
  EXPECT_EQ(stopped.text,
            llm.tokenizer().decode(std::span(plain.token_ids).first(static_cast<size_t>(first))));
}

TEST(Sampling, PrefixCacheDoesNotChangeTheAnswer) {
  // Prompts that share 0, 1, block_size - 1, block_size, block_size + 1 and all tokens, with and
  // without the prefix cache, which is empty first and then filled.
  const std::vector<int32_t> text =
      goldens("tiny-tales").at(33)["prompt_token_ids"].get<std::vector<int32_t>>();
  ASSERT_GE(text.size(), 200u);
  std::vector<std::vector<int32_t>> prompts;
  for (const size_t shared : {0, 1, 15, 16, 17, 64}) {
    std::vector<int32_t> prompt(text.begin() + 100, text.begin() + 164);
    std::copy_n(text.begin(), shared, prompt.begin());
    prompts.push_back(prompt);
  }
  prompts.emplace_back(text.begin(), text.begin() + 64);
  SamplingParams params;
  params.temperature = 0;
  params.max_tokens = 20;
  std::vector<std::vector<std::vector<int32_t>>> runs;
  for (const bool caching : {true, false}) {
    LLM llm(kTinyTales, {.dtype = "float32",
                         .kv_cache_memory_bytes = kCache,
                         .block_size = 16,
                         .enable_prefix_caching = caching});
    for (int round = 0; round < 2; ++round) {
      runs.emplace_back();
      for (const RequestOutput& output : llm.generate(prompts, params, false)) {
        runs.back().push_back(output.token_ids);
        EXPECT_TRUE(!caching || round == 0 || output.num_cached_tokens == 63);
      }
    }
  }
  for (const auto& run : runs) EXPECT_EQ(run, runs[0]);
}

}  // namespace
}  // namespace nanovllm::testing
