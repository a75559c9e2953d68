#include "nanovllm/server/anthropic/request.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "nanovllm/server/http/api_error.h"

namespace nanovllm::server {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

const SamplingParams kDefaults = {.temperature = 0.6, .max_tokens = kNoMaxTokens};

ChatRequest read(const std::string& body, MessagesRoute route = MessagesRoute::kMessages) {
  return messages_request(parse_json(body, "body"), kDefaults, route);
}
/// A body with one message, and more fields.
ChatRequest with(const std::string& more) {
  return read(R"({"max_tokens": 9, "messages": [{"role": "user", "content": "hi"}])" + more + "}");
}
/// The messages for the chat template.
Json messages(const std::string& given, const std::string& more = "") {
  return read(R"({"max_tokens": 9, "messages": )" + given + more + "}").variables["messages"];
}

void expect_refused(const std::string& body, const std::string& param, const std::string& what) {
  try {
    read(body);
    ADD_FAILURE() << "not refused: " << body;
  } catch (const ApiError& e) {
    EXPECT_EQ(e.status, 400);
    EXPECT_EQ(e.param, param) << e.what();
    EXPECT_THAT(e.what(), HasSubstr(what));
  }
}
void expect_field_refused(const std::string& more, const std::string& param,
                          const std::string& what) {
  expect_refused(
      R"({"max_tokens": 9, "messages": [{"role": "user", "content": "hi"}], )" + more + "}", param,
      what);
}

TEST(MessagesRequest, HasTheSamplingFieldsOfBothApis) {
  const ChatRequest request = with(R"(, "model": "m", "temperature": 0.5, "top_p": 0.25, "top_k": 3,
      "stop_sequences": ["a", "b"], "stream": true, "seed": 7, "cache_salt": "s",
      "metadata": {"user_id": "me"}, "service_tier": "auto", "unknown": 1, "n": 5)");
  EXPECT_EQ(request.model, "m");
  EXPECT_EQ(request.params.max_tokens, 9);
  EXPECT_EQ(request.params.temperature, 0.5);
  EXPECT_EQ(request.params.top_p, 0.25);
  EXPECT_EQ(request.params.top_k, 3);
  EXPECT_EQ(request.params.seed, 7);
  EXPECT_EQ(request.params.n, 1);
  EXPECT_THAT(request.params.stop, ElementsAre("a", "b"));
  EXPECT_TRUE(request.stream);
  EXPECT_EQ(request.cache_salt, "s");
}

// A sampling field that is added later works here too.
TEST(MessagesRequest, TakesEverySamplingFieldThatAResponseCanShow) {
  SamplingParams::for_each_field([](const FieldInfo& field, auto) {
    const std::string name = field.name;
    const bool is_other = name == "n" || name == "stop" || name == "logprobs" ||
                          name == "prompt_logprobs" || name == "detokenize";
    // No field is an object of this form, so whatever takes it refuses it.
    const std::string body =
        R"({"max_tokens": 9, "messages": [{"role": "user", "content": "hi"}], ")" + name +
        R"(": {"no": {"such": "value"}}})";
    if (is_other) EXPECT_EQ(read(body).params.n, 1) << name;
    else if (name != "max_tokens") expect_refused(body, name, name);
  });
}

TEST(MessagesRequest, OnlyCountingNeedsNoMaxTokens) {
  const std::string body = R"({"messages": [{"role": "user", "content": "hi"}]})";
  expect_refused(body, "max_tokens", "is missing");
  EXPECT_EQ(read(body, MessagesRoute::kCountTokens).variables["messages"].size(), 1);
}

TEST(MessagesRequest, TheSystemPromptIsTheFirstMessage) {
  const std::string hi = R"([{"role": "user", "content": "hi"}])";
  EXPECT_EQ(
      messages(hi, R"(, "system": "s")"),
      Json::parse(R"([{"role": "system", "content": "s"}, {"role": "user", "content": "hi"}])"));
  const std::string blocks = R"(, "system": [{"type": "text", "text": "a"},
      {"type": "text", "text": "b", "cache_control": {"type": "ephemeral"}}])";
  EXPECT_EQ(messages(hi, blocks)[0], Json::parse(R"({"role": "system", "content": [
      {"type": "text", "text": "a"},
      {"type": "text", "text": "b", "cache_control": {"type": "ephemeral"}}]})"));
}

TEST(MessagesRequest, BlocksBecomeMessagesOfOpenAi) {
  EXPECT_EQ(messages(R"([
      {"role": "user", "content": [{"type": "text", "text": "a"}]},
      {"role": "assistant", "content": [{"type": "thinking", "thinking": "t", "signature": ""},
        {"type": "redacted_thinking", "data": "x"}, {"type": "text", "text": "b"},
        {"type": "tool_use", "id": "1", "name": "f", "input": {"x": [1]}},
        {"type": "tool_use", "id": "2", "name": "g", "input": {}}]},
      {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "1", "content": "r"},
        {"type": "tool_result", "tool_use_id": "2"}, {"type": "text", "text": "c"},
        {"type": "text", "text": "d"}]}])"),
            Json::parse(R"([
      {"role": "user", "content": "a"},
      {"role": "assistant", "content": "b", "reasoning_content": "t", "tool_calls": [
        {"id": "1", "type": "function", "function": {"name": "f", "arguments": {"x": [1]}}},
        {"id": "2", "type": "function", "function": {"name": "g", "arguments": {}}}]},
      {"role": "tool", "tool_call_id": "1", "content": "r"},
      {"role": "tool", "tool_call_id": "2", "content": ""},
      {"role": "user", "content": [{"type": "text", "text": "c"}, {"type": "text", "text": "d"}]}])"));
}

TEST(MessagesRequest, ToolsBecomeFunctions) {
  const std::string tools = R"(, "tools": [{"name": "f", "description": "d",
      "input_schema": {"type": "object"}}, {"type": "custom", "name": "g"}])";
  const ChatRequest request = with(tools);
  EXPECT_THAT(request.tool_names, ElementsAre("f", "g"));
  EXPECT_TRUE(request.parallel_tool_calls);
  EXPECT_EQ(request.variables["tools"][0], Json::parse(R"({"type": "function", "function":
      {"name": "f", "description": "d", "parameters": {"type": "object"}}})"));
  const ChatRequest one =
      with(tools + R"(, "tool_choice": {"type": "auto", "disable_parallel_tool_use": true})");
  EXPECT_FALSE(one.parallel_tool_calls);
  EXPECT_TRUE(with(tools + R"(, "tool_choice": {"type": "none"})").tool_names.empty());
  const ChatRequest any =
      with(tools + R"(, "tool_choice": {"type": "any", "disable_parallel_tool_use": true})");
  EXPECT_TRUE(any.must_call);
  EXPECT_FALSE(any.parallel_tool_calls);
  const ChatRequest named = with(tools + R"(, "tool_choice": {"type": "tool", "name": "g"})");
  EXPECT_TRUE(named.must_call);
  EXPECT_THAT(named.tool_names, ElementsAre("g"));
}

TEST(MessagesRequest, AnOutputFormatIsASchema) {
  const std::string format = R"({"type": "json_schema", "schema": {"type": "array"}})";
  const ChatRequest older = with(R"(, "output_format": )" + format);
  EXPECT_EQ(older.params.constraint.value().json, R"({"type":"array"})");
  EXPECT_EQ(older.form_field, "output_format");
  const ChatRequest newer = with(R"(, "output_config": {"format": )" + format + "}");
  EXPECT_EQ(newer.params.constraint, older.params.constraint);
  EXPECT_EQ(newer.form_field, "output_config.format");
}

TEST(MessagesRequest, ThinkingIsAVariableOfTheTemplate) {
  const auto enables = [](const std::string& thinking) {
    return with(R"(, "thinking": )" + thinking).variables.value("enable_thinking", Json());
  };
  EXPECT_EQ(enables(R"({"type": "enabled", "budget_tokens": 1024})"), true);
  EXPECT_EQ(enables(R"({"type": "disabled"})"), false);
  EXPECT_EQ(enables(R"({"type": "adaptive"})"), Json());
  EXPECT_EQ(enables("null"), Json());
}

TEST(MessagesRequest, WhatItCannotDoIsRefusedByName) {
  expect_field_refused(R"("tool_choice": {"type": "any"})", "tool_choice", "no such function");
  expect_field_refused(R"("tool_choice": {"type": "tool"})", "tool_choice", "tool");
  expect_field_refused(R"("tool_choice": "auto")", "tool_choice", "auto");
  expect_field_refused(R"("tools": [{"type": "bash_20250124", "name": "bash"}])", "tools",
                       "bash_20250124");
  expect_field_refused(R"("tools": [{}])", "tools", "without a name");
  expect_field_refused(R"("output_config": {"format": {}})", "output_config.format", "json_schema");
  expect_field_refused(R"("thinking": "always")", "thinking", "always");
  expect_field_refused(R"("mcp_servers": [{"name": "a"}])", "mcp_servers", "is not supported");
  expect_field_refused(R"("stop_sequences": "a")", "stop_sequences", "list");
  expect_field_refused(R"("stop_sequences": [1])", "stop_sequences", "stop_sequences");
  expect_field_refused(R"("temperature": -1)", "temperature", "-1");
}

TEST(MessagesRequest, MessagesThatAreWrongAreNamed) {
  const auto refused = [](const std::string& messages, const std::string& what) {
    expect_refused(R"({"max_tokens": 9, "messages": )" + messages + "}", "messages", what);
  };
  refused("[]", "at least one");
  refused("5", "at least one");
  refused("[5]", "messages[0]");
  refused(R"([{"role": "user"}])", "a content");
  refused(R"([{"role": "user", "content": 5}])", "messages[0].content");
  refused(R"([{"role": "user", "content": [5]}])", "messages[0].content[0]");
  refused(R"([{"role": "user", "content": [{"type": "text"}]}])", "text must be a text");
  refused(R"([{"role": "user", "content": [{"type": "tool_result"}]}])", "tool_use_id");
}

TEST(MessagesRequest, SystemMessagesMayStandAnywhere) {
  EXPECT_EQ(messages(R"([{"role": "user", "content": "a"}, {"role": "system", "content": "b"}])",
                     R"(, "system": "c")"),
            Json::parse(R"([{"role": "system", "content": "c"}, {"role": "user", "content": "a"},
                            {"role": "system", "content": "b"}])"));
}

TEST(MessagesRequest, OtherBlocksStayForTheTemplate) {
  const std::string image = R"({"type": "image", "source": {}})";
  const std::string reference = R"({"type": "tool_reference", "tool_name": "f"})";
  const Json read = messages(R"([{"role": "user", "content": [)" + image + R"(]},
      {"role": "assistant", "content": [{"type": "text", "text": "a"}, {"type": "new"}]},
      {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "1", "content": [)" +
                             reference + "]}]}]");
  EXPECT_EQ(read[0]["content"], Json::array({Json::parse(image)}));
  EXPECT_EQ(read[1]["content"], Json::parse(R"([{"type": "text", "text": "a"}, {"type": "new"}])"));
  EXPECT_EQ(read[2]["role"], "tool");
  EXPECT_EQ(read[2]["content"], Json::array({Json::parse(reference)}));
}

TEST(MessagesRequest, AnAnswerThatTheClientHasBegunIsContinued) {
  const std::string begun =
      R"({"max_tokens": 9, "messages": [{"role": "user", "content": "a"},
                                        {"role": "assistant", "content": "b"}]})";
  EXPECT_TRUE(read(begun).continues_answer);
  EXPECT_FALSE(with("").continues_answer);
}

TEST(MessagesRequest, WhatCannotChangeTheAnswerIsIgnored) {
  EXPECT_NO_THROW(with(R"(, "output_config": {"effort": "high"}, "context_management": {"edits":
      [{"type": "clear_thinking_20251015", "keep": "all"}]}, "container": null, "mcp_servers": [],
      "speed": "fast", "thinking": {"type": "adaptive"})"));
}

}  // namespace
}  // namespace nanovllm::server
