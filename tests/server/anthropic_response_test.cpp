#include "nanovllm/server/anthropic/response.h"

#include <gtest/gtest.h>

#include "nanovllm/base/json.h"
#include "nanovllm/server/http/api_error.h"

namespace nanovllm::server {
namespace {

const MessageHead kHead = {"msg_1", "m"};

/// Calls a function that appends JSON to a text.
template <class Append, class... Args>
Json written(Append&& append, const Args&... args) {
  std::string to;
  append(to, args...);
  EXPECT_EQ(to.find('\n'), std::string::npos);
  return parse_json(to, "response");
}

Json message(const AnswerParts& parts, const MessageEnd& end) {
  return written(append_message, kHead, parts, end,
                 MessageUsage{.prompt_tokens = 9, .cached_tokens = 4, .output_tokens = 3});
}

TEST(Message, HasBlocksInOrder) {
  const AnswerParts parts = {
      .reasoning = "r",
      .content = "c",
      .calls = {{.index = 0, .id = "1", .name = "f", .arguments = "{}"},
                {.index = 1, .id = "2", .name = "g", .arguments = R"({"a": 1.0})"}}};
  EXPECT_EQ(message(parts, {.reason = "stop", .has_calls = true}), Json::parse(R"({"id": "msg_1",
      "type": "message", "role": "assistant", "model": "m", "content": [
        {"type": "thinking", "signature": "", "thinking": "r"}, {"type": "text", "text": "c"},
        {"type": "tool_use", "id": "1", "name": "f", "input": {}},
        {"type": "tool_use", "id": "2", "name": "g", "input": {"a": 1.0}}],
      "stop_reason": "tool_use", "stop_sequence": null,
      "usage": {"input_tokens": 5, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 4,
                "output_tokens": 3}})"));
  EXPECT_EQ(message({}, {.reason = "stop"})["content"], Json::array());
}

TEST(Message, SaysWhyItEnded) {
  const auto end = [](const MessageEnd& why) {
    const Json json = message({.content = "c"}, why);
    return std::pair(json["stop_reason"], json["stop_sequence"]);
  };
  EXPECT_EQ(end({.reason = "stop"}), std::pair(Json("end_turn"), Json()));
  EXPECT_EQ(end({.reason = "length"}), std::pair(Json("max_tokens"), Json()));
  EXPECT_EQ(end({.reason = "length", .has_calls = true}), std::pair(Json("max_tokens"), Json()));
  EXPECT_EQ(end({.reason = "stop", .stop_reason = StopReason("a\"")}),
            std::pair(Json("stop_sequence"), Json("a\"")));
  EXPECT_EQ(end({.reason = "stop", .stop_reason = StopReason(5)}),
            std::pair(Json("end_turn"), Json()));
  EXPECT_EQ(end({}), std::pair(Json(), Json()));
}

TEST(MessageEvent, BeginsAndEndsTheMessage) {
  const Json start = written(append_message_start, kHead, 7);
  EXPECT_EQ(start["type"], "message_start");
  EXPECT_EQ(start["message"]["content"], Json::array());
  EXPECT_EQ(start["message"]["stop_reason"], Json());
  EXPECT_EQ(start["message"]["usage"]["input_tokens"], 7);
  EXPECT_EQ(written(append_message_delta, MessageEnd{.reason = "stop"},
                    MessageUsage{.prompt_tokens = 2, .output_tokens = 1}),
            Json::parse(R"({"type": "message_delta", "delta": {"stop_reason": "end_turn",
                "stop_sequence": null}, "usage": {"input_tokens": 2,
                "cache_creation_input_tokens": 0, "cache_read_input_tokens": 0,
                "output_tokens": 1}})"));
}

TEST(MessageEvent, HasTheDeltasOfABlock) {
  const ToolCall call = {.id = "1", .name = "f", .arguments = "{}"};
  const ToolCall* const none = nullptr;
  EXPECT_EQ(written(append_block_start, 0, BlockKind::kThinking, none),
            Json::parse(R"({"type": "content_block_start", "index": 0, "content_block":
                {"type": "thinking", "signature": "", "thinking": ""}})"));
  EXPECT_EQ(written(append_block_start, 1, BlockKind::kText, none),
            Json::parse(R"({"type": "content_block_start", "index": 1, "content_block":
                {"type": "text", "text": ""}})"));
  EXPECT_EQ(written(append_block_start, 2, BlockKind::kToolUse, &call),
            Json::parse(R"({"type": "content_block_start", "index": 2, "content_block":
                {"type": "tool_use", "id": "1", "name": "f", "input": {}}})"));
  EXPECT_EQ(written(append_block_delta, 0, BlockKind::kThinking, "a\n")["delta"],
            Json::parse(R"({"type": "thinking_delta", "thinking": "a\n"})"));
  EXPECT_EQ(written(append_block_delta, 0, BlockKind::kText, "a")["delta"],
            Json::parse(R"({"type": "text_delta", "text": "a"})"));
  EXPECT_EQ(written(append_block_delta, 0, BlockKind::kToolUse, "{\"")["delta"],
            Json::parse(R"({"type": "input_json_delta", "partial_json": "{\""})"));
  EXPECT_EQ(written(append_block_stop, 3),
            Json::parse(R"({"type": "content_block_stop", "index": 3})"));
}

TEST(MessageError, HasAnthropicsFormOnItsRoutes) {
  const auto type = [](int status) {
    const Json body = parse_json(ApiError(status, "why").body("/v1/messages/count_tokens"), "body");
    EXPECT_EQ(body["type"], "error");
    EXPECT_EQ(body["error"]["message"], "why");
    return body["error"]["type"];
  };
  EXPECT_EQ(type(400), "invalid_request_error");
  EXPECT_EQ(type(401), "authentication_error");
  EXPECT_EQ(type(404), "not_found_error");
  EXPECT_EQ(type(413), "request_too_large");
  EXPECT_EQ(type(429), "rate_limit_error");
  EXPECT_EQ(type(500), "api_error");
  EXPECT_EQ(type(503), "overloaded_error");
  EXPECT_EQ(ApiError::event("/v1/messages"), "error");
  EXPECT_EQ(ApiError::event("/v1/completions"), "");
}

}  // namespace
}  // namespace nanovllm::server
