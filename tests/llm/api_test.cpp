#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <cstdint>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "goldens.h"
#include "nanovllm/llm.h"

namespace nanovllm::testing {
namespace {

EngineConfig small() { return {.dtype = "float32", .kv_cache_memory_bytes = 16 << 20}; }

// The engine's threads do not exist in a forked process, so it must not wait for them or end them.
TEST(Fork, ChildGetsAnErrorAndTheParentContinues) {
  auto llm = std::make_unique<LLM>(kTinyTales, small());
  const pid_t child = fork();
  if (child == 0) {
    alarm(30);  // a hang ends by a signal
    int refused = 0;
    try {
      llm->generate({"The"}, {.max_tokens = 2}, false);
    } catch (const EngineDead& e) {
      refused = std::string(e.what()).find("fork") != std::string::npos ? 7 : 1;
    }
    llm->exit();
    llm.reset();
    _exit(refused);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 7) << status;
  EXPECT_EQ(
      llm->generate({"The"}, {.max_tokens = 2, .ignore_eos = true}, false)[0].token_ids.size(), 2u);
}

TEST(Tokenizer, OutlivesItsLLMAndRendersWithAllVariables) {
  auto llm = std::make_unique<LLM>(kTinyTales, small());
  const LLMTokenizer tokenizer = llm->tokenizer();
  llm.reset();
  EXPECT_EQ(tokenizer.decode(tokenizer.encode("Once upon a time")), "Once upon a time");
  EXPECT_EQ(tokenizer.render_chat_template(
                R"({"messages": [{"role": "user", "content": "x"}], "add_generation_prompt": true,
                    "enable_thinking": false})"),
            tokenizer.apply_chat_template({{"user", "x"}}, true, false));
  EXPECT_EQ(tokenizer.render_chat_template(
                R"({"messages": [{"role": "user", "content": [{"type": "text", "text": "x"}]}],
                    "add_generation_prompt": true, "enable_thinking": false})"),
            tokenizer.apply_chat_template({{"user", "x"}}, true, false));
  EXPECT_THROW(tokenizer.render_chat_template("[1"), UserError);
}

TEST(LLM, MistakesNameFieldsAndNotOptions) {
  try {
    const LLM llm(kTinyTales, {.device = "cpu", .max_model_len = 1 << 30});
    FAIL() << "this length should be refused";
  } catch (const UserError& e) {
    EXPECT_EQ(std::string(e.what()).find("max_model_len is "), 0u) << e.what();
  }
}

TEST(LLM, WhatWasMovedFromThrows) {
  const SamplingParams params = {.temperature = 0, .max_tokens = 3};
  LLM first(kTinyTales, small());
  const std::string text = first.generate("Once upon a", params, false)[0].text;
  LLM second(kTinyTales, small());
  second = std::move(first);
  LLM third = std::move(second);
  EXPECT_EQ(third.generate("Once upon a", params, false)[0].text, text);
  for (LLM* empty : {&first, &second}) {
    EXPECT_THROW(empty->generate("Once", params, false), EngineDead);
    EXPECT_THROW(empty->chat({{"user", "Hello"}}), EngineDead);
    EXPECT_THROW(empty->default_sampling_params(), EngineDead);
    EXPECT_THROW(empty->add_request("Once", params), EngineDead);
    EXPECT_THROW(empty->add_request({5, 6}, params), EngineDead);
    EXPECT_THROW(empty->abort(0), EngineDead);
    EXPECT_THROW(empty->step(), EngineDead);
    EXPECT_THROW(empty->is_finished(), EngineDead);
    EXPECT_THROW(empty->stats(), EngineDead);
    EXPECT_THROW(empty->max_model_len(), EngineDead);
    EXPECT_EQ(empty->tokenizer().decode(empty->tokenizer().encode("Once")), "Once");
    empty->exit();
  }
  LLMTokenizer tokenizer = third.tokenizer();
  const LLMTokenizer other = std::move(tokenizer);
  EXPECT_EQ(tokenizer.encode("Once"), other.encode("Once"));
  first = std::move(third);
  EXPECT_EQ(first.generate("Once upon a", params, false)[0].text, text);
  first.exit();
  EXPECT_THROW(first.chat({{"user", "Hello"}}), EngineDead);
  EXPECT_THROW(first.default_sampling_params(), EngineDead);
}

using Tokens = std::map<uint64_t, std::vector<int32_t>>;

/// Runs steps until the engine is finished. Adds the tokens of each update to `pieces`, and those
/// of each finished request to `whole`.
void run(LLM& llm, Tokens& pieces, Tokens& whole) {
  while (!llm.is_finished()) {
    for (const RequestUpdate& update : llm.step()) {
      std::vector<int32_t>& ids = pieces[update.request_id];
      ids.insert(ids.end(), update.token_ids.begin(), update.token_ids.end());
      if (update.finished) whole[update.request_id] = update.finished->token_ids;
    }
  }
}

TEST(AddRequest, GenerateKeepsTheUpdatesOfAddedRequests) {
  LLM llm(kTinyTales, small());
  const std::vector<int32_t> prompt = {5, 6, 7};
  SamplingParams params = {.max_tokens = 20, .ignore_eos = true, .seed = 1};
  Tokens pieces, whole, expected;
  for (const int64_t max_tokens : {2, 9, 20}) {  // ended, ended and running when generate() is done
    params.max_tokens = max_tokens;
    expected[llm.add_request(prompt, params)] = generate_one(llm, prompt, params).token_ids;
  }
  EXPECT_FALSE(llm.is_finished());
  params.max_tokens = 12;
  llm.generate({"The"}, params, false);
  EXPECT_FALSE(llm.is_finished());
  run(llm, pieces, whole);
  EXPECT_EQ(whole, expected);
  EXPECT_EQ(pieces, expected);
  EXPECT_TRUE(llm.step().empty());
  const uint64_t id = llm.add_request({5, 6, 7}, params);
  run(llm, pieces, whole);
  EXPECT_EQ(pieces[id], generate_one(llm, prompt, params).token_ids);
}

TEST(AddRequest, RefusedGenerateLeavesNoRequests) {
  LLM llm(kTinyTales, small());
  SamplingParams bad;
  bad.logit_bias = {{1 << 20, 1.0}};
  EXPECT_THROW(llm.generate({"The", ""}, {.max_tokens = 2}, false), UserError);
  EXPECT_THROW(llm.generate(std::vector<std::string>{"The", "The"},
                            std::vector{SamplingParams(), bad}, false),
               UserError);
  EXPECT_THROW(llm.generate({"The", "The"}, std::vector{SamplingParams()}, false), UserError);
  EXPECT_TRUE(llm.is_finished());
  EXPECT_TRUE(llm.step().empty());
}

TEST(Generate, UpdatesArriveInPiecesAndCanEndAPrompt) {
  LLM llm(kTinyTales, small());
  const SamplingParams params = {.max_tokens = 30, .ignore_eos = true, .seed = 1};
  std::map<size_t, std::string> texts;
  const OnUpdate collect = [&](size_t prompt, const RequestUpdate& update) {
    texts[prompt] += update.text;
    return prompt != 1 || texts[1].size() < 20;
  };
  const auto outputs = llm.generate({"The", "Once", "A"}, params, false, collect);
  for (size_t i = 0; i < 3; ++i) EXPECT_EQ(outputs[i].text, texts[i]);
  EXPECT_EQ(outputs[1].finish_reason, "abort");
  EXPECT_LT(outputs[1].token_ids.size(), 30u);
  EXPECT_EQ(outputs[2].finish_reason, "length");
  EXPECT_EQ(outputs[2].text, llm.generate({"A"}, params, false)[0].text);
}

TEST(Generate, EachAnswerOfAnEndedPromptGetsTheRestOfItsText) {
  LLM llm(kTinyTales, small());
  // The last "e" is held back, since it may begin the text of stop.
  const SamplingParams params = {
      .max_tokens = 30, .ignore_eos = true, .stop = {"e zebra"}, .n = 3, .seed = 1};
  for (int64_t after = 1; after <= 12; ++after) {
    std::map<int32_t, std::string> texts, reasons;
    int64_t num_updates = 0;
    const OnUpdate collect = [&](size_t, const RequestUpdate& update) {
      texts[update.choice] += update.text;
      reasons[update.choice] = update.finish_reason;
      return ++num_updates != after;
    };
    const RequestOutput output = llm.generate({"Once"}, params, false, collect)[0];
    ASSERT_EQ(output.outputs.size(), 3u);
    for (int32_t i = 0; i < 3; ++i) {
      EXPECT_EQ(texts[i], output.outputs[static_cast<size_t>(i)].text) << after;
      EXPECT_EQ(reasons[i], "abort") << after;
    }
  }
}

TEST(Generate, ErrorOfTheCallbackEndsAllRequests) {
  LLM llm(kTinyTales, small());
  const OnUpdate fail = [](size_t, const RequestUpdate&) -> bool { throw std::range_error("x"); };
  EXPECT_THROW(llm.generate({"The", "Once"}, {.max_tokens = 500}, false, fail), std::range_error);
  llm.generate({"The"}, {.max_tokens = 2}, false);  // runs the step that ends them
  EXPECT_EQ(llm.stats().num_running, 0);
}

TEST(Generate, ErrorsNameThePrompt) {
  LLM llm(kTinyTales, small());
  const std::vector<std::vector<int32_t>> prompts = {{1}, {2}, {1 << 20}, {3}};
  try {
    llm.generate(prompts, {}, false);
    FAIL() << "no error";
  } catch (const UserError& e) {
    EXPECT_EQ(std::string(e.what()).find("prompt 2 of 4: "), 0u) << e.what();
  }
}

TEST(Generate, AllChoicesAndTheirLogprobsAreInOutputs) {
  LLM llm(kTinyTales, small());
  for (const int64_t n : {1, 3}) {
    const RequestOutput output =
        llm.generate({"The"}, {.max_tokens = 5, .logprobs = 0, .n = n}, false)[0];
    ASSERT_EQ(output.outputs.size(), static_cast<size_t>(n));
    EXPECT_EQ(output.token_ids, output.outputs[0].token_ids);
    for (const CompletionOutput& answer : output.outputs) {
      double sum = 0;
      for (const TokenLogprobs& token : answer.logprobs) sum += double{token[0].logprob};
      EXPECT_DOUBLE_EQ(answer.cumulative_logprob.value(), sum);
    }
  }
  EXPECT_FALSE(llm.generate({"The"}, {}, false)[0].cumulative_logprob.has_value());
}

TEST(Generate, WithoutDetokenizeTheTextIsEmpty) {
  LLM llm(kTinyTales, small());
  SamplingParams params = {.max_tokens = 5, .ignore_eos = true, .detokenize = false};
  const RequestOutput output = llm.generate({"The"}, params, false)[0];
  EXPECT_EQ(output.text, "");
  EXPECT_EQ(output.token_ids.size(), 5u);
  params.stop = {"x"};
  EXPECT_THROW(llm.generate({"The"}, params, false), UserError);
}

TEST(Generate, SeedMinusOneIsNone) {
  LLM llm(kTinyTales, small());
  const SamplingParams params = {.max_tokens = 30, .seed = kNoSeed};
  EXPECT_NE(llm.generate({"The"}, params, false)[0].token_ids,
            llm.generate({"The"}, params, false)[0].token_ids);
}

TEST(Chat, AnswersAConversationWithTheCheckpointsSamplingValues) {
  LLM llm(kTinyTales, small());
  EXPECT_EQ(llm.default_sampling_params().max_tokens, kNoMaxTokens);
  SamplingParams params = llm.default_sampling_params();
  params.seed = 3;
  std::string streamed;
  const std::vector<Message> messages = {{"user", "introduce yourself"}};
  const RequestOutput output = llm.chat(messages, params, [&](size_t, const RequestUpdate& update) {
    streamed += update.text;
    return true;
  });
  EXPECT_EQ(output.finish_reason, "stop");
  EXPECT_EQ(output.text, streamed);
  const std::string prompt = llm.tokenizer().apply_chat_template(messages);
  EXPECT_EQ(output.prompt_token_ids, llm.tokenizer().encode(prompt, false));
  EXPECT_EQ(llm.generate({prompt.c_str()}, params, false)[0].token_ids, output.token_ids);
}

TEST(Logprobs, ProcessedOnesAreOfTheDistributionThatIsDrawnFrom) {
  EngineConfig config = small();
  config.logprobs_mode = "processed_logprobs";
  LLM llm(kTinyTales, config);
  SamplingParams params = {.temperature = 2, .top_k = 4, .max_tokens = 20, .ignore_eos = true};
  params.logprobs = 6;
  params.presence_penalty = 2;
  const auto outputs = llm.generate({"The"}, params, false);
  for (const TokenLogprobs& token : outputs[0].logprobs) {
    double sum = 0;
    for (size_t i = 1; i < token.size(); ++i) sum += std::exp(double{token[i].logprob});
    EXPECT_NEAR(sum, 1, 1e-5);
    EXPECT_LE(token[0].rank, 4);
    EXPECT_TRUE(std::isinf(token[5].logprob));
  }
  config.logprobs_mode = "raw";
  EXPECT_THROW(LLM(kTinyTales, config), UserError);
}

TEST(Stats, CountTokensAndBlocks) {
  LLM llm(kTinyTales, small());
  llm.generate(std::vector<std::vector<int32_t>>{{5, 6, 7}}, {.max_tokens = 4, .ignore_eos = true},
               false);
  const EngineStats stats = llm.stats();
  EXPECT_EQ(stats.prefill_tokens, 3);
  EXPECT_EQ(stats.decode_tokens, 3);
  EXPECT_EQ(stats.num_free_blocks, stats.num_blocks);
  llm.exit();
  EXPECT_THROW(llm.stats(), EngineDead);
}

}  // namespace
}  // namespace nanovllm::testing
