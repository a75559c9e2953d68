#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <map>
#include <memory>
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
}

TEST(AddRequest, RefusedGenerateLeavesNoRequests) {
  LLM llm(kTinyTales, small());
  SamplingParams bad;
  bad.logit_bias = {{1 << 20, 1.0}};
  EXPECT_THROW(llm.generate({"The", ""}, {.max_tokens = 2}, false), UserError);
  EXPECT_THROW(llm.generate(std::vector<std::string>{"The", "The"},
                            std::vector{SamplingParams(), bad}, false),
               UserError);
  EXPECT_TRUE(llm.is_finished());
  EXPECT_TRUE(llm.step().empty());
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
