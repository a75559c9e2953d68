#include "nanovllm/server/openai/request.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "nanovllm/server/http/api_error.h"
#include "nanovllm/server/openai/limits.h"

namespace nanovllm::server {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

const SamplingParams kModelDefaults = {.temperature = 0.6, .top_k = 20, .max_tokens = kNoMaxTokens};

/// A body with a prompt, and more fields.
CompletionRequest completion(const std::string& more) {
  return completion_request(parse_json(R"({"model": "m", "prompt": "a")" + more + "}", "body"),
                            kModelDefaults);
}
CompletionRequest with_prompt(const std::string& prompt) {
  return completion_request(parse_json(R"({"prompt": )" + prompt + "}", "body"), kModelDefaults);
}
/// A body with one message, and more fields.
ChatRequest chat(const std::string& more) {
  const std::string start = R"({"model": "m", "messages": [{"role": "user", "content": "hi"}])";
  return chat_request(parse_json(start + more + "}", "body"), kModelDefaults);
}
ChatRequest with_messages(const std::string& messages) {
  return chat_request(parse_json(R"({"messages": )" + messages + "}", "body"), kModelDefaults);
}

constexpr std::string_view kTools = R"(, "tools": [{"type": "function", "function": {"name": "f",
    "parameters": {"type": "object"}}}, {"function": {"name": "g"}}])";

/// Expects an error 400 of the field with the text in its message.
template <class Call>
void expect_refused(Call&& call, const std::string& param, const std::string& what) {
  try {
    call();
    ADD_FAILURE() << "not refused: " << param << ", " << what;
  } catch (const ApiError& e) {
    EXPECT_EQ(e.status, 400);
    EXPECT_EQ(e.param, param) << e.what();
    EXPECT_THAT(e.what(), HasSubstr(what));
    EXPECT_LT(std::string_view(e.what()).size(), 400u);
  }
}
void expect_completion_refused(const std::string& more, const std::string& param,
                               const std::string& what) {
  expect_refused([&] { completion(", " + more); }, param, what);
}
void expect_chat_refused(const std::string& more, const std::string& param,
                         const std::string& what) {
  expect_refused([&] { chat(", " + more); }, param, what);
}

TEST(CompletionRequest, APromptIsATextOrIdsOrAListOfThem) {
  const PromptInput a = "a", b = "b", ids = std::vector<int32_t>{5, 6}, more = std::vector{7};
  EXPECT_THAT(with_prompt(R"("a")").prompts, ElementsAre(a));
  EXPECT_THAT(with_prompt(R"([5, 6])").prompts, ElementsAre(ids));
  EXPECT_THAT(with_prompt(R"(["a", "b"])").prompts, ElementsAre(a, b));
  EXPECT_THAT(with_prompt(R"([[5, 6], [7]])").prompts, ElementsAre(ids, more));
}

TEST(CompletionRequest, AnythingElseIsNoPrompt) {
  for (const auto& [prompt, what] :
       {std::pair("null", "is missing"), std::pair("5", "must be a text"),
        std::pair("{}", "must be a text"), std::pair("[]", "empty list"),
        std::pair("[[]]", "prompt[0] is an empty list"), std::pair("[true]", "contains true"),
        std::pair("[\"a\", 5]", "contains 5"), std::pair("[5, \"a\"]", "whole number"),
        std::pair("[-1]", "-1"), std::pair("[1.5]", "whole number"),
        std::pair("[4294967296]", "4294967296"), std::pair("[18446744073709551615]", "too large"),
        std::pair("[[[5]]]", "prompt[0]: entry 0 must be a whole number")})
    expect_refused([&] { with_prompt(prompt); }, "prompt", what);
}

TEST(CompletionRequest, PromptsAndAnswersAreLimited) {
  std::string prompts = R"(["a")";
  for (size_t i = 1; i < kMaxPrompts; ++i) prompts += R"(,"a")";
  EXPECT_EQ(with_prompt(prompts + "]").prompts.size(), kMaxPrompts);
  expect_refused([&] { with_prompt(prompts + R"(,"a"])"); }, "prompt",
                 "1025 prompts; at most 1024");
  expect_refused([&] { with_prompt(prompts + R"(], "n": 2)"); }, "n", "is 2 for 1024 prompts");
}

TEST(CompletionRequest, SixteenTokensAreTheDefault) {
  EXPECT_EQ(completion("").params.max_tokens, 16);
  EXPECT_EQ(completion(R"(, "max_tokens": 17)").params.max_tokens, 17);
  EXPECT_EQ(completion(R"(, "max_tokens": null)").params.max_tokens, kNoMaxTokens);
}

TEST(CompletionRequest, LogprobsAreANumber) {
  EXPECT_EQ(completion("").params.logprobs, std::nullopt);
  EXPECT_EQ(completion(R"(, "logprobs": false)").params.logprobs, std::nullopt);
  EXPECT_EQ(completion(R"(, "logprobs": 0)").params.logprobs, 0);
  expect_completion_refused(R"("logprobs": true)", "logprobs", "must be a whole number");
  expect_completion_refused(R"("logprobs": 21)", "logprobs", "is 21; it must be from 0 to 20");
  expect_completion_refused(R"("logprobs": -1)", "logprobs", "is -1");
}

TEST(CompletionRequest, EchoNeedsNoNewTokens) {
  const CompletionRequest request = completion(R"(, "echo": true, "max_tokens": 0, "logprobs": 1)");
  EXPECT_TRUE(request.echo);
  EXPECT_TRUE(request.prompt_only);
  EXPECT_EQ(request.params.max_tokens, 1);
  EXPECT_EQ(request.params.prompt_logprobs, 1);
  EXPECT_FALSE(request.return_prompt_logprobs);
  EXPECT_FALSE(completion(R"(, "echo": true)").prompt_only);
  EXPECT_FALSE(completion(R"(, "echo": true)").params.prompt_logprobs);
  expect_completion_refused(R"("max_tokens": 0)", "max_tokens", "is 0; it must be from 1");
  expect_completion_refused(R"("echo": 1)", "echo", "must be true or false, not 1");
  expect_completion_refused(R"("echo": true, "logprobs": 1, "stream": true)", "logprobs", "stream");
}

TEST(CompletionRequest, PromptLogprobsNeedAWholeResponse) {
  const CompletionRequest request = completion(R"(, "prompt_logprobs": 2)");
  EXPECT_EQ(request.params.prompt_logprobs, 2);
  EXPECT_TRUE(request.return_prompt_logprobs);
  expect_completion_refused(R"("prompt_logprobs": 2, "stream": true)", "prompt_logprobs", "stream");
}

TEST(CompletionRequest, WhatItCannotDoIsRefusedByName) {
  EXPECT_NO_THROW(completion(R"(, "suffix": "", "best_of": 1, "use_beam_search": false)"));
  expect_completion_refused(R"("suffix": "end")", "suffix", "\"end\" is not supported");
  expect_chat_refused(R"("include_reasoning": false)", "include_reasoning", "is not supported");
  expect_completion_refused(R"("best_of": 2)", "best_of", "best_of 2 is not supported");
}

TEST(OpenAiRequest, TheFormOfTheAnswerHasTheClientsName) {
  const CompletionRequest regex = completion(R"(, "guided_regex": "a*")");
  EXPECT_EQ(regex.params.constraint.value().regex, "a*");
  EXPECT_EQ(regex.form_field, "guided_regex");
  const ChatRequest json = chat(R"(, "response_format": {"type": "json_object"})");
  EXPECT_TRUE(json.params.constraint.value().json_object);
  EXPECT_EQ(json.form_field, "response_format");
  EXPECT_FALSE(
      chat(R"(, "response_format": {"type": "text"}, "guided_json": null)").params.constraint);
  expect_chat_refused(R"("structured_outputs": {})", "structured_outputs", "no form");
  expect_chat_refused(R"("structured_outputs": 5)", "structured_outputs", "must be an object");
  expect_completion_refused(R"("guided_choice": [])", "guided_choice", "at least one text");
  expect_chat_refused(R"("guided_regex": "a", "guided_json": {})", "guided_json", "second form");
  expect_chat_refused(R"("response_format": {"type": "json_schema", "json_schema": {}})",
                      "response_format", "json_schema.schema");
}

TEST(OpenAiRequest, SamplingStartsFromTheDefaults) {
  SamplingParams expected = kModelDefaults;
  EXPECT_EQ(chat("").params, expected);
  expected.max_tokens = 16;
  EXPECT_EQ(completion("").params, expected);
  const SamplingParams params =
      chat(R"(, "temperature": 0.5, "top_k": 7, "n": 2, "stop": "x", "seed": -1, "min_p": null,
              "logit_bias": {"5": -100}, "frequency_penalty": 1, "stop_token_ids": [3])")
          .params;
  EXPECT_EQ(params.temperature, 0.5);
  EXPECT_EQ(params.top_k, 7);
  EXPECT_EQ(params.n, 2);
  EXPECT_THAT(params.stop, ElementsAre("x"));
  EXPECT_EQ(params.seed, kNoSeed);
  EXPECT_EQ(params.logit_bias.at(5), -100);
  EXPECT_EQ(params.frequency_penalty, 1);
  EXPECT_THAT(params.stop_token_ids, ElementsAre(3));
}

TEST(OpenAiRequest, HugeNegativeFractionalAndOtherValuesAreRefused) {
  for (const char* name : {"n", "max_tokens", "top_k", "logprobs", "min_tokens"})
    for (const char* value :
         {"99999999999", "-7", "1.5", "\"1.5\"", "\"5x\"", "\"\"", "[5]", "{}", "1e300", "[[[1]]]"})
      expect_completion_refused(fmt::format("\"{}\": {}", name, value), name, "must be");
  for (const char* name : {"temperature", "top_p", "min_p", "presence_penalty"})
    for (const char* value : {"1e300", "-7", "\"a\"", "true", "[]"})
      expect_chat_refused(fmt::format("\"{}\": {}", name, value), name, "must be");
  expect_completion_refused(R"("n": 18446744073709551615)", "n", "is too large");
  expect_completion_refused(R"("max_tokens": 1000000000000000000000000000000)", "max_tokens",
                            "max_tokens is too large");
  expect_completion_refused(R"("seed": 18446744073709551616)", "seed", "seed is too large");
  expect_completion_refused(R"("seed": -100000000000000000000)", "seed", "seed is too small");
  expect_completion_refused(R"("seed": 0.5)", "seed", "seed must be a whole number");
  expect_completion_refused(R"("stop": [1])", "stop", "stop entry 0 must be a text");
  expect_completion_refused(R"("stop": 5)", "stop", "stop must be a text or a list of texts");
  expect_completion_refused(R"("stop_token_ids": [5, "a"])", "stop_token_ids",
                            "stop_token_ids entry 1 must be a whole number");
  for (const char* number : {"1e400", "NaN", "Infinity"})
    EXPECT_THROW(completion(fmt::format(", \"temperature\": {}", number)), UserError) << number;
  EXPECT_THROW(with_prompt(std::string(100'000, '[') + std::string(100'000, ']')), UserError);
}

TEST(OpenAiRequest, NumbersMayBeTextsAndWholeNumbersMayHaveAPoint) {
  const SamplingParams params = completion(R"(, "max_tokens": "5", "n": 2.0, "top_k": "7.0",
      "temperature": "0.25", "seed": "-3", "logprobs": 3.0, "stop_token_ids": ["4", 5.0])")
                                    .params;
  EXPECT_EQ(params.max_tokens, 5);
  EXPECT_EQ(params.n, 2);
  EXPECT_EQ(params.top_k, 7);
  EXPECT_EQ(params.temperature, 0.25);
  EXPECT_EQ(params.logprobs, 3);
  EXPECT_THAT(params.stop_token_ids, ElementsAre(4, 5));
  EXPECT_NO_THROW(completion(R"(, "priority": "1")"));
}

TEST(OpenAiRequest, LongListsAreRefused) {
  for (const auto& [name, item, most] :
       {std::tuple("stop", "\"a\"", kMaxStops), std::tuple("bad_words", "\"a\"", kMaxBadWords),
        std::tuple("stop_token_ids", "1", kMaxStopTokenIds)}) {
    std::string list = item;
    for (size_t i = 1; i < most; ++i) list += std::string(",") + item;
    EXPECT_NO_THROW(completion(fmt::format(", \"{}\": [{}]", name, list))) << name;
    expect_completion_refused(fmt::format("\"{}\": [{},{}]", name, list, item), name,
                              fmt::format("has {} entries; at most {}", most + 1, most));
  }
}

TEST(OpenAiRequest, StreamOptionsNeedAStream) {
  EXPECT_FALSE(chat("").stream);
  EXPECT_FALSE(chat(R"(, "stream": null, "stream_options": null)").stream);
  const ChatRequest plain = chat(R"(, "stream": true)");
  EXPECT_TRUE(plain.stream);
  EXPECT_FALSE(plain.include_usage);
  const ChatRequest both = chat(R"(, "stream": true,
      "stream_options": {"include_usage": true, "continuous_usage_stats": true, "x": 1})");
  EXPECT_TRUE(both.include_usage);
  EXPECT_TRUE(both.continuous_usage);
  EXPECT_FALSE(completion(R"(, "stream": true, "stream_options": {"continuous_usage_stats": true})")
                   .continuous_usage);
  EXPECT_FALSE(chat(R"(, "stream_options": {"include_usage": true})").include_usage);
  expect_chat_refused(R"("stream": true, "stream_options": [])", "stream_options", "an object");
  expect_chat_refused(R"("stream": "yes")", "stream", "must be true or false, not \"yes\"");
}

TEST(OpenAiRequest, OtherFieldsAreReadOrIgnored) {
  const CompletionRequest request =
      completion(R"(, "user": "u", "metadata": {}, "cache_salt": "s", "priority": -3, "what": [1],
                      "return_token_ids": true, "add_special_tokens": false)");
  EXPECT_EQ(request.model, "m");
  EXPECT_EQ(request.cache_salt, "s");
  EXPECT_TRUE(request.return_token_ids);
  EXPECT_FALSE(request.add_special_tokens);
  EXPECT_TRUE(completion("").add_special_tokens);
  EXPECT_FALSE(chat("").add_special_tokens);
  EXPECT_EQ(with_prompt("[1]").model, "");
  EXPECT_EQ(chat(R"(, "model": "")").model, "");
  expect_completion_refused(R"("cache_salt": "")", "cache_salt", "a text that is not empty");
  expect_completion_refused(R"("cache_salt": 5)", "cache_salt", "a text that is not empty");
  expect_completion_refused(R"("priority": 0.5)", "priority", "must be a whole number");
  expect_completion_refused(R"("model": 5)", "model", "must be a text");
  expect_completion_refused(R"("model": ")" + std::string(2000, 'm') + '"', "model", "2000 bytes");
}

TEST(OpenAiRequest, TheBodyIsAnObject) {
  expect_refused([] { completion_request(Json::array(), kModelDefaults); }, "", "a JSON object");
  expect_refused([] { chat_request(Json(5), kModelDefaults); }, "", "a JSON object");
}

TEST(ChatRequest, OnlyTheDefaultsLimitTheAnswer) {
  EXPECT_EQ(chat("").params.max_tokens, kNoMaxTokens);
  EXPECT_EQ(chat(R"(, "max_tokens": null)").params.max_tokens, kNoMaxTokens);
  EXPECT_EQ(chat(R"(, "max_tokens": 5)").params.max_tokens, 5);
  EXPECT_EQ(chat(R"(, "max_tokens": 5, "max_completion_tokens": 6)").params.max_tokens, 6);
  EXPECT_EQ(chat(R"(, "max_tokens": 5, "max_completion_tokens": null)").params.max_tokens, 5);
  expect_chat_refused(R"("max_completion_tokens": 0)", "max_completion_tokens", "is 0; it must be");
  expect_chat_refused(R"("max_tokens": 0)", "max_tokens", "is 0; it must be");
}

TEST(ChatRequest, LogprobsAreABoolAndANumber) {
  EXPECT_EQ(chat(R"(, "logprobs": false, "top_logprobs": 0)").params.logprobs, std::nullopt);
  EXPECT_EQ(chat(R"(, "logprobs": true)").params.logprobs, 0);
  EXPECT_EQ(chat(R"(, "logprobs": true, "top_logprobs": 20)").params.logprobs, 20);
  expect_chat_refused(R"("logprobs": 5)", "logprobs", "must be true or false, not 5");
  expect_chat_refused(R"("top_logprobs": 5)", "top_logprobs", "needs logprobs");
  expect_chat_refused(R"("logprobs": true, "top_logprobs": 21)", "top_logprobs", "is 21; it must");
  EXPECT_EQ(chat(R"(, "logprobs": true, "top_logprobs": "5")").params.logprobs, 5);
  expect_chat_refused(R"("logprobs": true, "top_logprobs": "a")", "top_logprobs", "whole number");
}

TEST(ChatRequest, TheTemplateGetsMessagesToolsAndVariables) {
  const Json variables = chat(std::string(kTools) + R"(, "documents": [{"text": "d"}],
      "chat_template_kwargs": {"enable_thinking": false, "x": 1}, "reasoning_effort": "low")")
                             .variables;
  EXPECT_EQ(variables["messages"], Json::parse(R"([{"role": "user", "content": "hi"}])"));
  EXPECT_EQ(variables["tools"].size(), 2u);
  EXPECT_EQ(variables["documents"][0]["text"], "d");
  EXPECT_EQ(variables["enable_thinking"], false);
  EXPECT_EQ(variables["x"], 1);
  EXPECT_EQ(variables["reasoning_effort"], "low");
  EXPECT_EQ(variables["add_generation_prompt"], true);
  const Json plain = chat(R"(, "add_generation_prompt": false, "tools": [])").variables;
  EXPECT_TRUE(plain["tools"].is_null());
  EXPECT_TRUE(plain["documents"].is_null());
  EXPECT_FALSE(plain.contains("enable_thinking"));
  EXPECT_EQ(plain["add_generation_prompt"], false);
  expect_chat_refused(R"("chat_template_kwargs": [])", "chat_template_kwargs", "an object");
  expect_chat_refused(R"("documents": "d")", "documents", "a list");
}

TEST(ChatRequest, NoReasoningEffortMeansNoThinking) {
  EXPECT_EQ(chat(R"(, "reasoning_effort": "none")").variables["enable_thinking"], false);
  EXPECT_EQ(chat(R"(, "reasoning_effort": "none",
                      "chat_template_kwargs": {"enable_thinking": true})")
                .variables["enable_thinking"],
            true);
}

TEST(ChatRequest, MessagesHaveARoleAndAContent) {
  for (const auto& [messages, what] :
       {std::pair("null", "is missing"), std::pair("[]", "at least one"),
        std::pair("{}", "at least one"), std::pair("[5]", "messages[0] must be an object"),
        std::pair(R"([{"content": "a"}])", "messages[0] must have a role"),
        std::pair(R"([{"role": "user"}, {"role": 5}])", "messages[1] must have a role"),
        std::pair(R"([{"role": "user", "content": 5}])", "messages[0] must have a content")})
    expect_refused([&] { with_messages(messages); }, "messages", what);
  EXPECT_NO_THROW(with_messages(R"([{"role": "user", "content": [{"type": "text"}]},
                                    {"role": "assistant", "content": null}])"));
}

TEST(ChatRequest, AnAnswerThatTheClientHasBegunIsContinued) {
  const auto with_last = [](const std::string& last, const std::string& more = "") {
    return chat_request(
        parse_json(R"({"messages": [{"role": "user", "content": "hi"}, )" + last + "]" + more + "}",
                   "body"),
        kModelDefaults);
  };
  const std::string begun = R"({"role": "assistant", "content": "Once"})";
  const ChatRequest request = with_last(begun);
  EXPECT_TRUE(request.continues_answer);
  EXPECT_EQ(request.variables["continue_final_message"], true);
  EXPECT_EQ(request.variables["add_generation_prompt"], false);
  const std::string both = R"(, "continue_final_message": true, "add_generation_prompt": false)";
  EXPECT_TRUE(with_last(begun, both).continues_answer);
  for (const char* more :
       {R"(, "continue_final_message": false)", R"(, "add_generation_prompt": true)"})
    EXPECT_FALSE(with_last(begun, more).continues_answer) << more;
  for (const char* last :
       {R"({"role": "user", "content": "a"})", R"({"role": "assistant", "content": ""})",
        R"({"role": "assistant", "content": null})",
        R"({"role": "assistant", "content": "a", "tool_calls": [{"function": {"name": "f"}}]})"}) {
    EXPECT_FALSE(with_last(last).continues_answer) << last;
    EXPECT_EQ(with_last(last).variables["add_generation_prompt"], true) << last;
  }
  EXPECT_TRUE(
      with_last(R"({"role": "assistant", "content": "a", "tool_calls": []})").continues_answer);
  const ChatRequest parts = with_last(R"({"role": "assistant", "content": [
      {"type": "text", "text": "a"}, {"type": "text", "text": "b"}]})");
  EXPECT_TRUE(parts.continues_answer);
  EXPECT_EQ(parts.variables["messages"][1]["content"], "a\nb");
  expect_chat_refused(R"("continue_final_message": true)", "continue_final_message",
                      "the role \"assistant\"");
  expect_refused(
      [&] {
        with_last(begun, R"(, "continue_final_message": true, "add_generation_prompt": true)");
      },
      "continue_final_message", "cannot both be true");
}

TEST(ChatRequest, FieldsThatCannotChangeTheAnswerAreIgnored) {
  EXPECT_NO_THROW(chat(R"(, "store": true, "metadata": {"a": "b"}, "service_tier": "flex",
      "safety_identifier": "s", "prompt_cache_key": "k", "verbosity": "low", "prediction": {},
      "context_management": [], "extra": {"a": [1]}, "reasoning": "x", "thinking": 5)"));
}

TEST(ChatRequest, OtherNamesOfTheEffortAreVariablesToo) {
  EXPECT_EQ(chat(R"(, "reasoning": {"effort": "high"})").variables["reasoning_effort"], "high");
  EXPECT_EQ(chat(R"(, "reasoning": {"enabled": false})").variables["enable_thinking"], false);
  EXPECT_EQ(chat(R"(, "thinking": {"type": "disabled"})").variables["enable_thinking"], false);
  EXPECT_EQ(chat(R"(, "thinking": {"type": "enabled"})").variables["enable_thinking"], true);
}

TEST(ChatRequest, ToolsThatMayBeCalledAreNamed) {
  const std::string tools(kTools);
  EXPECT_THAT(chat(tools).tool_names, ElementsAre("f", "g"));
  EXPECT_THAT(chat(tools + R"(, "tool_choice": "auto")").tool_names, ElementsAre("f", "g"));
  const ChatRequest none = chat(tools + R"(, "tool_choice": "none")");
  EXPECT_THAT(none.tool_names, ElementsAre());
  EXPECT_TRUE(none.variables["tools"].is_null());
  EXPECT_TRUE(chat("").parallel_tool_calls);
  EXPECT_FALSE(chat(R"(, "parallel_tool_calls": false)").parallel_tool_calls);
  expect_chat_refused(R"("tools": {})", "tools", "must be a list");
  expect_chat_refused(R"("tools": [5])", "tools", "contains 5");
  expect_chat_refused(R"("tools": [{"type": "custom"}])", "tools", "the type \"custom\"");
  expect_chat_refused(R"("tools": [{"type": "function", "function": {}}])", "tools", "has a name");
}

TEST(ChatRequest, ToolsThatMustBeCalled) {
  const auto with_choice = [](const std::string& choice) {
    return chat(std::string(kTools) + R"(, "tool_choice": )" + choice);
  };
  const ChatRequest any = with_choice(R"("required")");
  EXPECT_TRUE(any.must_call && any.parallel_tool_calls);
  EXPECT_THAT(any.tool_names, ElementsAre("f", "g"));
  EXPECT_FALSE(with_choice(R"("auto")").must_call);
  // The model sees all tools, as it does in other turns.
  for (const char* choice : {R"({"type": "function", "function": {"name": "g"}})",
                             R"({"type": "function", "name": "g"})"}) {
    const ChatRequest named = with_choice(choice);
    EXPECT_TRUE(named.must_call);
    EXPECT_FALSE(named.parallel_tool_calls);
    EXPECT_THAT(named.tool_names, ElementsAre("g"));
    EXPECT_EQ(named.variables["tools"].size(), 2u);
  }
  const ChatRequest allowed = with_choice(R"({"type": "allowed_tools", "allowed_tools": {
      "mode": "required", "tools": [{"type": "function", "function": {"name": "g"}}]}})");
  EXPECT_TRUE(allowed.must_call);
  EXPECT_THAT(allowed.tool_names, ElementsAre("g"));
  EXPECT_EQ(allowed.variables["tools"].size(), 1u);
  const ChatRequest may = with_choice(
      R"({"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "f"}]})");
  EXPECT_FALSE(may.must_call);
  EXPECT_THAT(may.tool_names, ElementsAre("f"));
  expect_chat_refused(R"("tool_choice": "required")", "tool_choice", "no such function");
  expect_refused([&] { with_choice(R"({"type": "function", "function": {"name": "x"}})"); },
                 "tool_choice", "no such function");
  expect_refused([&] { with_choice(R"({"type": "web_search"})"); }, "tool_choice",
                 "is not supported");
}

TEST(ChatRequest, WhatItCannotDoIsRefusedByName) {
  EXPECT_NO_THROW(chat(R"(, "response_format": {"type": "text"}, "modalities": ["text"],
                            "functions": null, "continue_final_message": false)"));
  expect_chat_refused(R"("tool_choice": "always")", "tool_choice", "\"always\" is not supported");
  expect_chat_refused(R"("functions": [{"name": "f"}])", "functions", "is not supported");
  expect_chat_refused(R"("modalities": ["audio"])", "modalities", "is not supported");
  expect_chat_refused(R"("chat_template": "x")", "chat_template", "is not supported");
  expect_chat_refused(R"("echo": true)", "echo", "is not supported");
}

}  // namespace
}  // namespace nanovllm::server
