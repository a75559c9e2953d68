#include <gtest/gtest.h>

#include <algorithm>

#include "goldens.h"
#include "nanovllm/llm.h"

namespace nanovllm::testing {
namespace {

// The prompt of a turn begins with the tokens that the previous turn computed: its prompt, and its
// answer without the last token.
TEST(Conversation, NextTurnUsesTheCacheOfThePreviousOne) {
  for (const int64_t block_size : {16, 64}) {
    LLM llm(kTinyTales,
            {.dtype = "float32", .kv_cache_memory_bytes = 64 << 20, .block_size = block_size});
    SamplingParams params;
    params.temperature = 0;
    params.max_tokens = 70;
    std::vector<Message> messages;
    std::vector<int32_t> computed;
    for (const char* question : {"introduce yourself", "Tell me a story of the sea and the moon.",
                                 "And then?", "What did the king say?"}) {
      messages.push_back({"user", question});
      const std::string text = llm.tokenizer().apply_chat_template(messages);
      const std::vector<int32_t> prompt = llm.tokenizer().encode(text, false);
      const RequestOutput output = generate_one(llm, prompt, params);
      const auto common = std::ranges::mismatch(prompt, computed).in1 - prompt.begin();
      EXPECT_EQ(output.num_cached_tokens, common / block_size * block_size) << question;
      computed = prompt;
      computed.insert(computed.end(), output.token_ids.begin(), output.token_ids.end() - 1);
      messages.push_back({"assistant", output.text});
    }
    EXPECT_GT(computed.size(), 100u);
  }
}

}  // namespace
}  // namespace nanovllm::testing
