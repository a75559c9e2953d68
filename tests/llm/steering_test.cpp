// Stop strings, penalties, biases and word lists on a real model.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <set>

#include "goldens.h"
#include "nanovllm/llm.h"

namespace nanovllm::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

class Steering : public ::testing::Test {
 protected:
  static EngineConfig config() { return {.dtype = "float32", .kv_cache_memory_bytes = 64 << 20}; }
  RequestOutput answer(const SamplingParams& params) { return generate_one(llm, prompt, params); }
  /// Greedy, 40 tokens past every end token.
  static SamplingParams greedy() {
    SamplingParams params;
    params.temperature = 0;
    params.max_tokens = 40;
    params.ignore_eos = true;
    return params;
  }

  LLM llm{kTinyTales, config()};
  std::vector<int32_t> prompt = llm.tokenizer().encode("Once upon a time");
};

TEST_F(Steering, StopStringIsFoundAnywhereAndNoPartOfItIsSent) {
  const std::string whole = answer(greedy()).text;
  ASSERT_GT(whole.size(), 60u);
  // Stop strings of all small lengths: across tokens, inside one, and at both ends of the text.
  for (size_t at = 0; at + 9 < whole.size(); at += 7) {
    for (const size_t length : {1u, 2u, 5u, 9u}) {
      SamplingParams params = greedy();
      params.stop = {"never in the text", whole.substr(at, length)};
      const uint64_t id = llm.add_request(prompt, params);
      std::string sent;
      RequestOutput output;
      while (!llm.is_finished()) {
        for (const RequestUpdate& update : llm.step()) {
          ASSERT_EQ(update.request_id, id);
          sent += update.text;
          if (update.finished) output = *update.finished;
        }
      }
      EXPECT_EQ(output.text, whole.substr(0, whole.find(params.stop[1])));
      EXPECT_EQ(sent, output.text);
      EXPECT_EQ(output.finish_reason, "stop");
      EXPECT_EQ(output.stop_reason, StopReason(params.stop[1]));
      // token_ids contains exactly the sampled tokens.
      const std::string sampled = llm.tokenizer().decode(output.token_ids);
      EXPECT_NE(sampled.find(params.stop[1]), std::string::npos);
      const std::string before =
          llm.tokenizer().decode(std::span(output.token_ids).first(output.token_ids.size() - 1));
      EXPECT_EQ(before.find(params.stop[1]), std::string::npos);
    }
  }
}

TEST_F(Steering, StopStringThatDoesNotOccurHoldsBackNothing) {
  const RequestOutput plain = answer(greedy());
  SamplingParams params = greedy();
  params.stop = {plain.text.substr(plain.text.size() - 5) + "and more"};
  const RequestOutput output = answer(params);
  EXPECT_EQ(output.text, plain.text);
  EXPECT_EQ(output.finish_reason, "length");
  EXPECT_EQ(output.stop_reason, std::nullopt);
}

TEST_F(Steering, StopStringsWaitForMinTokens) {
  const RequestOutput plain = answer(greedy());
  SamplingParams params = greedy();
  params.stop = {"a"};
  params.min_tokens = 20;
  const RequestOutput output = answer(params);
  EXPECT_GT(output.token_ids.size(), 20u);
  EXPECT_LT(output.token_ids.size(), 40u);
  EXPECT_TRUE(plain.text.starts_with(output.text));
}

// Sums of a prompt's length with these overflow 32 bits.
TEST_F(Steering, LargestMinTokensPreventsEveryEndToken) {
  EngineConfig small = config();
  small.max_model_len = 48;
  LLM short_context(kTinyTales, small);
  SamplingParams params = greedy();
  params.stop_token_ids = {generate_one(short_context, prompt, params).token_ids[0]};
  params.max_tokens = kNoMaxTokens;
  for (const int64_t min_tokens : {kNoMaxTokens, kNoMaxTokens - 2, int64_t{1} << 30}) {
    params.min_tokens = min_tokens;
    const RequestOutput output = generate_one(short_context, prompt, params);
    EXPECT_EQ(output.token_ids.size(), 48 - prompt.size()) << min_tokens;
    EXPECT_EQ(output.finish_reason, "length") << min_tokens;
    EXPECT_EQ(std::ranges::count(output.token_ids, params.stop_token_ids[0]), 0) << min_tokens;
  }
}

// Values that are 0 as a float, or have no finite reciprocal.
TEST_F(Steering, SmallestTemperaturesAndTopPDrawTheBestToken) {
  const std::vector<int32_t> best = answer(greedy()).token_ids;
  for (const double tiny : {1e-300, 5e-324, 1e-40, 1e-6}) {
    SamplingParams params = greedy();
    params.temperature = tiny;
    EXPECT_EQ(answer(params).token_ids, best) << tiny;
    params.temperature = 100;
    params.top_p = tiny;
    EXPECT_EQ(answer(params).token_ids, best) << tiny;
    params.top_p = 1;
    params.top_k = 1;
    params.min_p = tiny;
    EXPECT_EQ(answer(params).token_ids, best) << tiny;
  }
  SamplingParams params = greedy();
  params.temperature = 3e38;
  params.top_k = 1;
  EXPECT_EQ(answer(params).token_ids, best);
  params.temperature = 0;
  params.repetition_penalty = 1e-6;
  EXPECT_EQ(answer(params).finish_reason, "length");
}

TEST_F(Steering, StopStringsEndEachChoiceSeparately) {
  SamplingParams params;
  params.n = 8;
  params.seed = 3;
  params.max_tokens = 40;
  params.ignore_eos = true;
  const RequestOutput plain = answer(params);
  params.stop = {"the"};
  const RequestOutput stopped = answer(params);
  for (size_t i = 0; i < 8; ++i) {
    const std::string& whole = plain.outputs[i].text;
    const size_t at = whole.find("the");
    EXPECT_EQ(stopped.outputs[i].text, whole.substr(0, at)) << i;
    EXPECT_EQ(stopped.outputs[i].finish_reason, at == std::string::npos ? "length" : "stop") << i;
  }
}

TEST_F(Steering, AfterAStopStringTheCacheGivesTheSameAnswers) {
  const RequestOutput plain = answer(greedy());
  SamplingParams params = greedy();
  params.stop = {plain.text.substr(70, 6)};
  const RequestOutput stopped = answer(params);
  ASSERT_EQ(stopped.finish_reason, "stop");
  std::vector<int32_t> longer = prompt;
  longer.insert(longer.end(), stopped.token_ids.begin(), stopped.token_ids.end());
  EngineConfig off = config();
  off.enable_prefix_caching = false;
  LLM fresh(kTinyTales, off);
  EXPECT_EQ(generate_one(llm, longer, greedy()).token_ids,
            generate_one(fresh, longer, greedy()).token_ids);
}

// The chosen token must be the best after the penalties, which shift log-probabilities as they
// shift logits.
TEST_F(Steering, PresenceAndFrequencyPenaltiesCountOnlyTheAnswer) {
  SamplingParams params = greedy();
  params.logprobs = 20;
  params.presence_penalty = 0.7;
  params.frequency_penalty = 0.4;
  const RequestOutput output = answer(params);
  EXPECT_NE(output.token_ids, answer(greedy()).token_ids);
  std::map<int32_t, int> count;
  for (size_t i = 0; i < output.token_ids.size(); ++i) {
    const auto value = [&](const Logprob& e) {
      const int n = count.contains(e.id) ? count[e.id] : 0;
      return e.logprob - 0.4 * n - (n > 0 ? 0.7 : 0);
    };
    const double chosen = value(output.logprobs[i][0]);
    for (const Logprob& other : output.logprobs[i]) EXPECT_GE(chosen, value(other) - 1e-5) << i;
    ++count[output.token_ids[i]];
  }
}

TEST_F(Steering, RepetitionPenaltyCoversThePrompt) {
  SamplingParams params = greedy();
  params.repetition_penalty = 1e6;  // the tokens of prompt and answer become nearly impossible
  const RequestOutput output = answer(params);
  std::set<int32_t> seen(prompt.begin(), prompt.end());
  for (const int32_t token : output.token_ids) EXPECT_TRUE(seen.insert(token).second) << token;
}

TEST_F(Steering, PenaltiesAreTheSameAloneAsyncAndPreempted) {
  SamplingParams params = greedy();
  params.temperature = 0.9;
  params.seed = 11;
  params.presence_penalty = 0.5;
  params.repetition_penalty = 1.3;
  params.bad_words = {" the"};
  params.logit_bias = {{258, -2.0}};
  const std::vector<int32_t> alone = answer(params).token_ids;
  EngineConfig config = Steering::config();
  config.async_scheduling = false;
  LLM behind(kTinyTales, config);
  EXPECT_EQ(generate_one(behind, prompt, params).token_ids, alone);

  config = Steering::config();
  config.block_size = 16;
  config.max_model_len = 128;
  config.num_gpu_blocks_override = 9;
  LLM small(kTinyTales, config);
  const std::vector<std::vector<int32_t>> crowd(12, prompt);
  for (const RequestOutput& output : small.generate(crowd, params, false))
    EXPECT_EQ(output.token_ids, alone);
}

TEST_F(Steering, BiasesAndAllowedTokensDecideWhatIsDrawn) {
  SamplingParams params = greedy();
  params.temperature = 1;
  params.logit_bias = {{500, 100.0}};
  for (const int32_t token : answer(params).token_ids) EXPECT_EQ(token, 500);

  params = greedy();
  params.temperature = 100;
  params.allowed_token_ids = {{300, 7, 4000}};
  std::set<int32_t> drawn;
  for (const int32_t token : answer(params).token_ids) drawn.insert(token);
  EXPECT_EQ(drawn, (std::set<int32_t>{7, 300, 4000}));

  params.temperature = 1;
  params.logit_bias = {{300, -100.0}, {7, -100.0}};
  for (const int32_t token : answer(params).token_ids) EXPECT_EQ(token, 4000);
}

TEST_F(Steering, OnlyTheLastTokenOfABadWordIsForbidden) {
  const RequestOutput plain = answer(greedy());
  // The last token of a word of several tokens is forbidden only after the others.
  const std::string word = llm.tokenizer().decode(std::span(plain.token_ids).subspan(5, 3));
  SamplingParams params = greedy();
  params.bad_words = {word};
  const RequestOutput output = answer(params);
  EXPECT_EQ(output.text.find(word), std::string::npos) << word;
  EXPECT_TRUE(
      std::equal(output.token_ids.begin(), output.token_ids.begin() + 7, plain.token_ids.begin()));
  EXPECT_NE(output.token_ids[7], plain.token_ids[7]);
}

TEST_F(Steering, ARequestThatForbidsEveryTokenEndsWithAnErrorOfItsOwn) {
  SamplingParams params = greedy();
  params.allowed_token_ids = {{500, 501}};
  params.stop_token_ids = {500, 501};
  params.min_tokens = 3;
  const RequestOutput from_the_start = answer(params);
  params.min_tokens = 0;
  params.stop_token_ids = {};
  params.allowed_token_ids = {{500}};
  const std::vector<int32_t> twice = {500, 500};
  params.bad_words = {llm.tokenizer().decode(twice)};
  const RequestOutput later = answer(params);
  SamplingParams all = greedy();
  all.min_tokens = 1;
  for (int32_t id = 0; id < llm.vocab_size(); ++id) all.stop_token_ids.push_back(id);
  const RequestOutput of_the_vocabulary = answer(all);
  EXPECT_TRUE(of_the_vocabulary.is_request_at_fault);
  EXPECT_THAT(of_the_vocabulary.error, HasSubstr("no token of the vocabulary"));
  EXPECT_EQ(from_the_start.token_ids.size(), 0u);
  EXPECT_EQ(later.token_ids.size(), 1u);
  for (const RequestOutput* output : {&from_the_start, &later}) {
    EXPECT_EQ(output->finish_reason, "error");
    EXPECT_TRUE(output->is_request_at_fault);
    EXPECT_THAT(output->error, HasSubstr("no token of allowed_token_ids"));
  }
}

TEST_F(Steering, IdsOutsideTheVocabularyAndEmptyListsAreRefusedByName) {
  const std::pair<const char*, std::function<void(SamplingParams&)>> bad[] = {
      {"logit_bias",
       [](auto& p) {
         p.logit_bias = {{1 << 20, 1.0}};
       }},
      {"allowed_token_ids",
       [](auto& p) {
         p.allowed_token_ids = {{5, 1 << 20}};
       }},
      {"allowed_token_ids", [](auto& p) { p.allowed_token_ids.emplace(); }},
      {"UTF-8", [](auto& p) { p.stop = {"\xff"}; }},
  };
  for (const auto& [name, change] : bad) {
    SamplingParams params;
    change(params);
    EXPECT_THAT([&] { llm.add_request(prompt, params); },
                ThrowsMessage<UserError>(HasSubstr(name)));
  }
  LLM no_text(model_folder("llama"), {.dtype = "float32"});
  SamplingParams params;
  params.stop = {"x"};
  EXPECT_THAT(
      [&] {
        no_text.add_request(std::vector<int32_t>{5, 6}, params);
      },
      ThrowsMessage<UserError>(HasSubstr("tokenizer")));
}

TEST_F(Steering, PromptsAndParametersCanBeWrittenInTheCall) {
  const std::vector<std::vector<int32_t>> ids = {prompt};
  EXPECT_EQ(llm.generate(ids, {.max_tokens = 2}, false).at(0).token_ids.size(), 2u);
  EXPECT_EQ(llm.generate({{5, 6, 7}, {8}}, {.max_tokens = 2}, false).size(), 2u);
  EXPECT_EQ(llm.generate({"a", "b"}, {.max_tokens = 2}, false).size(), 2u);
  const std::vector<SamplingParams> each(1, {.max_tokens = 3});
  EXPECT_EQ(llm.generate(ids, each, false).at(0).token_ids.size(), 3u);
}

}  // namespace
}  // namespace nanovllm::testing
