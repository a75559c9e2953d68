#include "nanovllm/server/openai/chunks.h"

#include <gtest/gtest.h>

#include <chrono>
#include <iostream>

#include "json_checks.h"

namespace nanovllm::server::testing {
namespace {

const ResponseHead kHead = {"chatcmpl-1", 1700000000, "m"};
const ChunkOptions kPlain = {.token_text = [](int32_t id) { return "é" + std::to_string(id); }};

ChunkOptions with_usage() {
  ChunkOptions options = kPlain;
  options.null_usage = true;
  return options;
}
ChunkOptions with_ids() {
  ChunkOptions options = kPlain;
  options.token_ids = true;
  return options;
}

Json chat_chunk(const ChunkOptions& options, const ChatChunks::Piece& piece, int64_t choice = 0) {
  std::string to;
  ChatChunks(kHead, options).add(to, choice, piece);
  return checked_chat_chunk(to);
}

Json begin_chunk(const ChunkOptions& options, std::vector<int32_t> prompt_token_ids = {}) {
  std::string to;
  ChatChunks(kHead, options).begin(to, 1, prompt_token_ids);
  return checked_chat_chunk(to);
}

TEST(ChatChunk, TheFirstOneHasTheRole) {
  EXPECT_EQ(begin_chunk(kPlain), Json::parse(R"({"id": "chatcmpl-1",
      "object": "chat.completion.chunk", "created": 1700000000, "model": "m",
      "choices": [{"index": 1, "delta": {"role": "assistant", "content": ""}, "logprobs": null,
                   "finish_reason": null}]})"));
}

TEST(ChatChunk, TheNextOnesHaveContentAndReasoning) {
  const Json choice = chat_chunk(kPlain, {.content = "a\n\"b\""}, 3)["choices"][0];
  EXPECT_EQ(choice, Json::parse(R"({"index": 3, "delta": {"content": "a\n\"b\""},
      "logprobs": null, "finish_reason": null})"));
  EXPECT_EQ(chat_chunk(kPlain, {.reasoning = "r"})["choices"][0]["delta"],
            Json::parse(R"({"reasoning_content": "r", "reasoning": "r"})"));
  EXPECT_EQ(chat_chunk(kPlain, {.content = "c", .reasoning = "r"})["choices"][0]["delta"],
            Json::parse(R"({"reasoning_content": "r", "reasoning": "r", "content": "c"})"));
}

TEST(ChatChunk, ToolCallsComeInPieces) {
  const std::vector<ToolCallDelta> calls = {
      {.index = 0, .arguments = "1}"}, {.index = 1, .id = "c2", .name = "g", .arguments = "{\""}};
  const Json delta =
      chat_chunk(kPlain, {.content = "x", .tool_calls = calls})["choices"][0]["delta"];
  EXPECT_EQ(delta, Json::parse(R"x({"content": "x", "tool_calls": [
      {"index": 0, "function": {"arguments": "1}"}},
      {"index": 1, "id": "c2", "type": "function",
       "function": {"name": "g", "arguments": "{\""}}]})x"));
}

TEST(ChatChunk, TheLastOneOfAChoiceSaysWhyItEnded) {
  const std::optional<StopReason> token = 7, none;
  Json choice = chat_chunk(kPlain, {.end = {"stop", &token}})["choices"][0];
  EXPECT_EQ(choice["delta"], Json::object());
  EXPECT_EQ(choice["finish_reason"], "stop");
  EXPECT_EQ(choice["stop_reason"], 7);
  choice = chat_chunk(kPlain, {.content = "x", .end = {"length", &none}})["choices"][0];
  EXPECT_EQ(choice["delta"]["content"], "x");
  EXPECT_EQ(choice["finish_reason"], "length");
  EXPECT_TRUE(choice["stop_reason"].is_null());
}

TEST(ChatChunk, UsageIsNullUntilTheLastChunk) {
  EXPECT_FALSE(chat_chunk(kPlain, {}).contains("usage"));
  EXPECT_TRUE(begin_chunk(with_usage())["usage"].is_null());
  EXPECT_TRUE(chat_chunk(with_usage(), {}).at("usage").is_null());
  const ChatChunks chunks(kHead, with_usage());
  std::string to;
  chunks.usage(to, {5, 7, 4});
  const Json last = checked_chat_chunk(to);
  EXPECT_EQ(last["choices"], Json::array());
  EXPECT_EQ(last["usage"], Json::parse(R"({"prompt_tokens": 5, "completion_tokens": 7,
      "total_tokens": 12, "prompt_tokens_details": {"cached_tokens": 4}})"));
  to.clear();
  const Usage so_far = {5, 1, 4};
  chunks.add(to, 0, {.content = "x"}, &so_far);
  EXPECT_EQ(checked_chat_chunk(to)["usage"]["total_tokens"], 6);
}

TEST(ChatChunk, HasTokenIdsIfAskedFor) {
  const std::vector<int32_t> ids = {4, 5};
  const Json json = chat_chunk(with_ids(), {.content = "x", .tokens = {ids, {}}});
  EXPECT_EQ(json["choices"][0]["token_ids"], Json({4, 5}));
  EXPECT_EQ(begin_chunk(with_ids(), {1, 2})["prompt_token_ids"], Json({1, 2}));
  EXPECT_FALSE(begin_chunk(kPlain, {1, 2}).contains("prompt_token_ids"));
}

TEST(ChatChunk, HasTheLogprobsOfItsTokens) {
  const std::vector<int32_t> ids = {4, 5};
  const std::vector<TokenLogprobs> logprobs = {{{4, -0.5f, 1}, {4, -0.5f, 1}}, {{5, -1, 2}}};
  const Json json = chat_chunk(kPlain, {.content = "x", .tokens = {ids, logprobs}});
  const Json& content = json["choices"][0]["logprobs"]["content"];
  ASSERT_EQ(content.size(), 2u);
  EXPECT_EQ(content[0]["top_logprobs"][0]["token"], "é4");
  EXPECT_EQ(content[1]["logprob"], -1);
}

TEST(CompletionChunk, HasTextAndTheEnd) {
  const CompletionChunks chunks(kHead, with_usage());
  TextOffset offset;
  std::string to;
  chunks.add(to, 2, {.text = "a"}, offset);
  EXPECT_EQ(checked_completion(to), Json::parse(R"({"id": "chatcmpl-1",
      "object": "text_completion", "created": 1700000000, "model": "m", "choices": [{"index": 2,
      "text": "a", "logprobs": null, "finish_reason": null}], "usage": null})"));
  const std::optional<StopReason> reason = "END";
  to.clear();
  chunks.add(to, 2, {.end = {"stop", &reason}}, offset);
  const Json choice = checked_completion(to)["choices"][0];
  EXPECT_EQ(choice["text"], "");
  EXPECT_EQ(choice["finish_reason"], "stop");
  EXPECT_EQ(choice["stop_reason"], "END");
  to.clear();
  chunks.usage(to, {1, 2, 0});
  EXPECT_EQ(checked_completion(to)["usage"]["total_tokens"], 3);
}

TEST(CompletionChunk, OffsetsOfAChoiceContinue) {
  const auto tokenizer = Tokenizer::parse(R"({"decoder": {"type": "ByteLevel"},
      "model": {"vocab": {"ab": 4, "cde": 55}, "merges": []}})",
                                          "t.json");
  const CompletionChunks chunks(kHead, with_ids());
  const std::vector<int32_t> ids = {4, 55};
  const std::vector<TokenLogprobs> logprobs = {{{4, -0.5f, 1}}, {{55, -1, 2}}};
  TextOffset offset(Detokenizer(*tokenizer, /*skip_special_tokens=*/true));
  for (const Json& offsets : {Json({0, 2}), Json({5, 7})}) {
    std::string to;
    chunks.add(to, 0, {.text = "x", .tokens = {ids, logprobs}, .prompt_token_ids = ids}, offset);
    const Json choice = checked_completion(to)["choices"][0];
    EXPECT_EQ(choice["token_ids"], Json({4, 55}));
    EXPECT_EQ(choice["prompt_token_ids"], Json({4, 55}));
    EXPECT_EQ(choice["logprobs"]["text_offset"], offsets);
  }
}

TEST(Chunks, TakeAboutAMicrosecond) {
  const ChatChunks chunks(kHead, with_usage());
  constexpr int kChunks = 100'000;
  std::string to;
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < kChunks; ++i) {
    to.clear();
    chunks.add(to, i & 7, {.content = " \"token\" é"});
  }
  const std::chrono::duration<double, std::micro> time = std::chrono::steady_clock::now() - start;
  std::cout << time.count() / kChunks << " us a chunk of " << to.size() << " bytes\n";
  EXPECT_LT(time.count() / kChunks, 20);  // the sanitizers and a loaded machine are slow
}

}  // namespace
}  // namespace nanovllm::server::testing
