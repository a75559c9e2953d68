#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <memory>

#include "goldens.h"
#include "nanovllm/llm.h"

namespace nanovllm::testing {
namespace {

EngineConfig small() { return {.dtype = "float32", .kv_cache_memory_bytes = 16 << 20}; }

// None of the engine's threads is in a forked process: it may neither wait for them nor end them.
TEST(Fork, ChildGetsAnErrorAndCanLetGoAndTheParentGoesOn) {
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
  EXPECT_THROW(tokenizer.render_chat_template("[1"), UserError);
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
