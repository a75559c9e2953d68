#include "nanovllm/server/openai/response.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "json_checks.h"
#include "nanovllm/base/json.h"

namespace nanovllm::server::testing {
namespace {

using ::testing::ElementsAre;

const ResponseHead kQuotedHead = {"chatcmpl-1", 1700000000, "a \"model\""};
constexpr float kInfinity = std::numeric_limits<float>::infinity();

/// The tokens of the examples: 1 is "Hello", 2 is a part of a character, and so on.
std::string text_of(int32_t id) {
  const char* texts[] = {"<s>", "Hello", "\xC3", "\xC3\xA9\n", " you", "you", "\xA9"};
  return texts[id];
}

CompletionOutput answer(const std::string& text, std::vector<int32_t> ids) {
  CompletionOutput output;
  output.text = text;
  output.token_ids = std::move(ids);
  output.finish_reason = "stop";
  return output;
}

RequestOutput output_of(std::vector<CompletionOutput> answers) {
  RequestOutput output;
  static_cast<CompletionOutput&>(output) = answers[0];
  output.prompt_token_ids = {0, 1, 3};
  output.num_cached_tokens = 2;
  output.outputs = std::move(answers);
  return output;
}

const ResponseOptions kTextOnly = {.token_text = text_of};
const ResponseOptions kAll = {.token_text = text_of, .token_ids = true, .prompt_logprobs = true};

Json chat_json(const RequestOutput& output, std::vector<AnswerParts> answers,
               const ResponseOptions& options = kTextOnly) {
  return checked_chat_response(chat_response(kQuotedHead, output, answers, options));
}
Json completion_json(std::vector<PromptAnswers> prompts,
                     const ResponseOptions& options = kTextOnly) {
  return checked_completion(completion_response(kQuotedHead, prompts, options));
}

TEST(ChatResponse, HasTheMessageAndTheUsage) {
  const Json json = chat_json(output_of({answer("Hello", {1, 0})}), {{.content = "Hello"}});
  EXPECT_EQ(json, Json::parse(R"({"id": "chatcmpl-1", "object": "chat.completion",
      "created": 1700000000, "model": "a \"model\"", "choices": [{"index": 0,
      "message": {"role": "assistant", "content": "Hello", "refusal": null}, "logprobs": null,
      "finish_reason": "stop", "stop_reason": null}], "usage": {"prompt_tokens": 3,
      "completion_tokens": 2, "total_tokens": 5, "prompt_tokens_details": {"cached_tokens": 2}}})"));
}

TEST(ChatResponse, HasAllChoices) {
  const Json json = chat_json(output_of({answer("a", {1}), answer("b", {1, 4})}),
                              {{.content = "a"}, {.content = "b"}});
  ASSERT_EQ(json["choices"].size(), 2u);
  EXPECT_EQ(json["choices"][1]["index"], 1);
  EXPECT_EQ(json["choices"][1]["message"]["content"], "b");
  EXPECT_EQ(json["usage"]["completion_tokens"], 3);
  EXPECT_EQ(json["usage"]["prompt_tokens"], 3);
}

TEST(ChatResponse, HasReasoningAndToolCalls) {
  const AnswerParts called = {.reasoning = "I think",
                              .calls = {{0, "c1", "f", R"({"a": "\n"})"}, {1, "c2", "g", "{"}}};
  const Json choice = chat_json(output_of({answer("", {1})}), {called})["choices"][0];
  EXPECT_EQ(choice["finish_reason"], "tool_calls");
  EXPECT_EQ(choice["message"], Json::parse(R"x({"role": "assistant", "content": null,
      "refusal": null, "reasoning_content": "I think", "reasoning": "I think", "tool_calls": [
      {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{\"a\": \"\\n\"}"}},
      {"id": "c2", "type": "function", "function": {"name": "g", "arguments": "{"}}]})x"));
}

TEST(ChatResponse, AnAnswerThatWasCutOffSaysSoEvenWithToolCalls) {
  EXPECT_EQ(finish_reason_of("stop", false), "stop");
  EXPECT_EQ(finish_reason_of("stop", true), "tool_calls");
  for (const char* reason : {"length", "abort", "error"})
    for (const bool called : {false, true}) EXPECT_EQ(finish_reason_of(reason, called), reason);
}

TEST(ChatResponse, NamesWhatStoppedIt) {
  CompletionOutput by_text = answer("a", {1}), by_token = by_text;
  by_text.stop_reason = "\"END\"";
  by_token.stop_reason = 7;
  const Json json = chat_json(output_of({by_text, by_token}), {{}, {}});
  EXPECT_EQ(json["choices"][0]["stop_reason"], "\"END\"");
  EXPECT_EQ(json["choices"][1]["stop_reason"], 7);
}

TEST(ChatResponse, HasTheBestTokensAndTheirBytes) {
  CompletionOutput output = answer("", {1, 2});
  output.logprobs = {{{1, -0.25f, 1}}, {{2, -2.5f, 3}, {4, -0.5f, 1}, {3, -kInfinity, 2}}};
  const Json logprobs = chat_json(output_of({output}), {{}})["choices"][0]["logprobs"];
  EXPECT_EQ(logprobs["content"][0], Json::parse(R"({"token": "Hello", "logprob": -0.25,
      "bytes": [72, 101, 108, 108, 111], "top_logprobs": []})"));
  EXPECT_EQ(logprobs["content"][1], Json::parse(R"({"token": "\ufffd", "logprob": -2.5,
      "bytes": [195], "top_logprobs": [
      {"token": " you", "logprob": -0.5, "bytes": [32, 121, 111, 117]},
      {"token": "é\n", "logprob": -9999, "bytes": [195, 169, 10]}]})"));
  EXPECT_TRUE(logprobs["refusal"].is_null());
}

TEST(ChatResponse, HasTokensAndThePromptIfAskedFor) {
  RequestOutput output = output_of({answer("", {4, 5})});
  output.prompt_logprobs = {{}, {{1, -1.5f, 2}, {4, -0.5f, 1}}, {{3, -0.5f, 1}, {3, -0.5f, 1}}};
  const Json json = chat_json(output, {{}}, kAll);
  EXPECT_EQ(json["choices"][0]["token_ids"], Json({4, 5}));
  EXPECT_EQ(json["prompt_token_ids"], Json({0, 1, 3}));
  EXPECT_EQ(json["prompt_logprobs"], Json::parse(R"([null,
      {"1": {"logprob": -1.5, "rank": 2, "decoded_token": "Hello"},
       "4": {"logprob": -0.5, "rank": 1, "decoded_token": " you"}},
      {"3": {"logprob": -0.5, "rank": 1, "decoded_token": "é\n"}}])"));
}

TEST(CompletionResponse, NumbersTheChoicesOfAllPrompts) {
  const RequestOutput first = output_of({answer("a", {1}), answer("b", {1})});
  const RequestOutput second = output_of({answer("c", {1}), answer("d", {1, 4})});
  const Json json = completion_json({{.output = &first}, {.output = &second}});
  EXPECT_EQ(json["object"], "text_completion");
  ASSERT_EQ(json["choices"].size(), 4u);
  EXPECT_EQ(json["choices"][3], Json::parse(R"({"index": 3, "text": "d", "logprobs": null,
      "finish_reason": "stop", "stop_reason": null})"));
  EXPECT_EQ(json["usage"], Json::parse(R"({"prompt_tokens": 6, "completion_tokens": 5,
      "total_tokens": 11, "prompt_tokens_details": {"cached_tokens": 4}})"));
}

TEST(CompletionResponse, EchoPutsThePromptBeforeTheAnswer) {
  RequestOutput output = output_of({answer(" you", {4})});
  output.prompt_logprobs = {{}, {{1, -1.5f, 2}, {4, -0.5f, 1}}, {{3, -0.5f, 1}, {3, -0.5f, 1}}};
  output.outputs[0].logprobs = {{{4, -1.0f, 1}, {4, -1.0f, 1}, {5, -3.0f, 2}}};
  const std::vector<int64_t> offsets = {0, 3, 8};
  const PromptAnswers echo = {&output, "<s>Helloé\n", offsets, TextOffset({}, 10)};
  const Json choice = completion_json({echo})["choices"][0];
  EXPECT_EQ(choice["text"], "<s>Helloé\n you");
  EXPECT_EQ(choice["logprobs"], Json::parse(R"({"tokens": ["<s>", "Hello", "é\n", " you"],
      "token_logprobs": [null, -1.5, -0.5, -1.0],
      "top_logprobs": [null, {"Hello": -1.5, " you": -0.5}, {"é\n": -0.5},
                       {" you": -1.0, "you": -3.0}], "text_offset": [0, 3, 8, 10]})"));
}

TEST(CompletionResponse, OffsetsAreThoseOfTheText) {
  const auto tokenizer = Tokenizer::parse(R"({"decoder": {"type": "ByteLevel"},
      "added_tokens": [{"id": 0, "content": "<s>", "special": true}],
      "model": {"vocab": {"Ã": 2, "Ġyou": 4, "©": 6}, "merges": []}})",
                                          "t.json");
  RequestOutput output = output_of({answer("é you", {2, 6, 0, 4})});
  output.outputs[0].logprobs = {{{2, -1, 1}}, {{6, -1, 1}}, {{0, -1, 1}}, {{4, -1, 1}}};
  const auto offsets = [&](bool skip_special_tokens, int64_t begin) {
    const TextOffset offset(Detokenizer(*tokenizer, skip_special_tokens), begin);
    return completion_json(
        {{.output = &output, .offset = offset}})["choices"][0]["logprobs"]["text_offset"];
  };
  EXPECT_EQ(offsets(false, 0), Json({0, 0, 1, 4}));
  EXPECT_EQ(offsets(true, 5), Json({5, 5, 6, 6}));
}

TEST(CompletionResponse, OffsetsFollowTheDecoderOfSentencePiece) {
  const auto tokenizer = Tokenizer::parse(R"({
      "decoder": {"type": "Sequence", "decoders": [
          {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"},
          {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0}]},
      "post_processor": {"type": "TemplateProcessing", "special_tokens": {"<s>": {"ids": [0]}},
          "single": [{"SpecialToken": {"id": "<s>"}}, {"Sequence": {"id": "A"}}]},
      "added_tokens": [{"id": 0, "content": "<s>", "special": true}],
      "model": {"vocab": {"▁a": 1, "b": 2, "<0xC3>": 3, "<0xA9>": 4}, "merges": []}})",
                                          "t.json");
  const std::vector<int32_t> prompt = {0, 1, 2, 0, 1};  // "ab<s> a" with a token before it
  EXPECT_THAT(offsets_of_prompt(*tokenizer, prompt, /*has_added_ids=*/true),
              ElementsAre(0, 0, 1, 2, 5));
  EXPECT_THAT(offsets_of_prompt(*tokenizer, prompt, /*has_added_ids=*/false),
              ElementsAre(0, 3, 5, 6, 9));  // "<s> ab<s> a"
  // The bytes of é are held back until the run of byte tokens ends.
  const auto begins = [&](TextOffset offset) {
    std::vector<int64_t> offsets;
    for (const int32_t id : {1, 3, 4, 2, 1}) {
      offsets.push_back(offset.num_chars());
      offset.add(id);
    }
    return offsets;
  };
  Detokenizer detokenizer(*tokenizer, /*skip_special_tokens=*/true);
  EXPECT_THAT(begins(TextOffset(detokenizer)), ElementsAre(0, 1, 1, 2, 3));  // "aéb a"
  detokenizer.continue_text();
  EXPECT_THAT(begins(TextOffset(detokenizer, 7)), ElementsAre(7, 9, 9, 10, 11));
  EXPECT_THAT(begins(TextOffset()), ElementsAre(0, 0, 0, 0, 0));  // without a tokenizer
}

TEST(CompletionResponse, MayHaveOnlyThePrompt) {
  RequestOutput output = output_of({answer(" you", {4})});
  output.prompt_logprobs = {{}, {{1, -1.5f, 2}}, {{3, -0.5f, 1}}};
  output.outputs[0].logprobs = {{{4, -1.0f, 1}}};
  const std::vector<int64_t> offsets = {0, 3, 8};
  const PromptAnswers echo = {&output, "<s>Helloé\n", offsets, TextOffset(), /*prompt_only=*/true};
  const Json json = completion_json({echo}, {.token_text = text_of, .token_ids = true});
  EXPECT_EQ(json["choices"][0]["text"], "<s>Helloé\n");
  EXPECT_EQ(json["choices"][0]["logprobs"]["tokens"].size(), 3u);
  EXPECT_EQ(json["choices"][0]["token_ids"], Json::array());
  EXPECT_EQ(json["choices"][0]["prompt_token_ids"], Json({0, 1, 3}));
  EXPECT_EQ(json["usage"]["completion_tokens"], 0);
}

TEST(CompletionResponse, TokensWithTheSameTextAreOneKey) {
  RequestOutput output = output_of({answer("", {2})});
  output.outputs[0].logprobs = {{{2, -0.5f, 1}, {2, -0.5f, 1}, {1, -kInfinity, 2}}};
  const std::string text =
      completion_response(kQuotedHead, std::vector{PromptAnswers{&output}}, kTextOnly);
  EXPECT_THAT(text, ::testing::HasSubstr(R"("top_logprobs":[{")"
                                         "\xEF\xBF\xBD"
                                         R"(":-0.5,"Hello":-9999}])"));
  EXPECT_THAT(checked_completion(text)["choices"][0]["logprobs"]["text_offset"], ElementsAre(0));
}

TEST(Models, AreListed) {
  const std::vector<ServedModel> models = {{"m", 5, 4096}, {"\"n\"", 6, 4096}};
  const Json list = Json::parse(models_response(models));
  EXPECT_EQ(list["object"], "list");
  ASSERT_EQ(list["data"].size(), 2u);
  EXPECT_EQ(list["data"][1]["id"], "\"n\"");
  EXPECT_EQ(list["data"][0], Json::parse(model_response(models[0])));
  EXPECT_EQ(list["data"][0], Json::parse(R"({"id": "m", "object": "model", "created": 5,
      "owned_by": "nanovllm", "max_model_len": 4096})"));
  EXPECT_EQ(Json::parse(models_response({}))["data"], Json::array());
}

}  // namespace
}  // namespace nanovllm::server::testing
