#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "answer_parser_checks.h"

namespace nanovllm::server {
namespace {

using namespace server::testing;

using ::testing::MatchesRegex;

// Llama's JSON. The examples with these names are those of vLLM's tests of its parsers llama3_json
// and xlam.

const AnswerParser::Options kJson{
    .call_form = CallForm::kJson,
    .tools = {"searchTool", "getOpenIncidentsTool", "get_current_weather"}};
const std::string kSearch = R"({"name": "searchTool", "parameters": {"query": "test query"}})";
const std::string kSearched = R"(|searchTool({"query": "test query"}))";
const std::string kOpen = R"({"name": "getOpenIncidentsTool", "parameters": {}})";
const std::string kOpened = "|getOpenIncidentsTool({})";

TEST(AnswerParserJson, AnObjectIsACall) {
  EXPECT_EQ(parsed(kSearch, kJson), kSearched);
  EXPECT_EQ(parsed(R"({"name": "searchTool", "arguments": {"query": "test"}})", kJson),
            R"(|searchTool({"query": "test"}))");
  EXPECT_EQ(parsed(R"({"type": "function", "name": "searchTool", "parameters": {}})", kJson),
            "|searchTool({})");
  EXPECT_EQ(parsed(R"({ "parameters" : { "a":1.0 }, "name":"searchTool" })", kJson),
            R"(|searchTool({ "a":1.0 }))");
}

TEST(AnswerParserJson, TextMayBeAroundIt) {
  EXPECT_EQ(parsed("Here is the result: " + kOpen + " Would you like to know more?", kJson),
            "Here is the result: Would you like to know more?" + kOpened);
  EXPECT_EQ(
      parsed("Here are the results: " + kSearch + "; " + kOpen + "; " + kSearch + " More?", kJson),
      "Here are the results: More?" + kSearched + kOpened + kSearched);
}

TEST(AnswerParserJson, SeveralFollowEachOther) {
  for (const char* between : {"; ", " ; ", ";", "\n", "\n\n", "", ", ", " ,\n"})
    EXPECT_EQ(parsed(kSearch + between + kOpen + between + kSearch, kJson),
              kSearched + kOpened + kSearched)
        << between;
  EXPECT_EQ(parsed(kSearch + ";", kJson), kSearched);
  EXPECT_EQ(parsed(kSearch + ";; " + kOpen, kJson), ";;" + kSearched + kOpened);
}

TEST(AnswerParserJson, TagsOfLlamaMayBeAroundIt) {
  EXPECT_EQ(parsed("<|python_tag|>" + kSearch, kJson), kSearched);
  EXPECT_EQ(parsed("<|python_tag|>" + kSearch + "; " + kOpen, kJson), kSearched + kOpened);
  EXPECT_EQ(parsed("I look.\n<|python_start|>" + kSearch + "<|python_end|>\n", kJson),
            "I look." + kSearched);
  expect_is_content("<|python_tag|>print(1)", kJson);
  expect_is_content("<|python_tag|>", kJson);
}

TEST(AnswerParserJson, ListsAreXlams) {
  EXPECT_EQ(parsed("[" + kSearch + ", " + kOpen + "]", kJson), kSearched + kOpened);
  EXPECT_EQ(parsed("I'll help you with that.\n```json\n[" + kSearch + "]\n```", kJson),
            "I'll help you with that." + kSearched);
  EXPECT_EQ(parsed("I'll check.[TOOL_CALLS][" + kSearch + "]", kJson), "I'll check." + kSearched);
  EXPECT_EQ(parsed("<think>a</think>[" + kSearch + "]",
                   {.splits_reasoning = true, .call_form = CallForm::kJson, .tools = kJson.tools}),
            "[a]" + kSearched);
  EXPECT_EQ(parsed("[ " + kSearch + " ]\nDone", kJson), "Done" + kSearched);
}

TEST(AnswerParserJson, ArgumentsAreTheModelsText) {
  const std::string arguments =
      R"({"query": "test {value} [complex]","n":1.50, "l": [{"a": "} \"]"}, 1e2]})";
  EXPECT_EQ(parsed(R"({"name": "searchTool", "parameters": )" + arguments + "}", kJson),
            "|searchTool(" + arguments + ")");
  const std::string deep = R"({"level1": {"level2": {"level3": {"level4": {"value": "deep"}}}}})";
  EXPECT_EQ(parsed(R"({"name": "searchTool", "parameters": )" + deep + "}", kJson),
            "|searchTool(" + deep + ")");
}

TEST(AnswerParserJson, WhatIsNotACallIsContent) {
  for (const char* text :
       {"This is just some text without any tool calls",
        R"({"name": "searchTool", "parameters": {invalid json})",
        R"({"parameters": {}})",
        R"({"name": "searchTool"})",
        R"({"name": "otherTool", "parameters": {}})",
        R"({"x": {"name": "searchTool", "parameters": {}}})",
        R"(["a", {"b": 1}])",
        R"({"tools": [{"name": "searchTool", "parameters": {"type": "object"}}]})",
        R"({"type": "function", "function": {"name": "searchTool", "parameters": {"a": {}}}})",
        "{}",
        "[]",
        "{ }",
        "[1, 2]",
        "if (a) { return b[0]; }",
        "```json\n{\"a\": 1}\n```",
        "```json\n```",
        "```\n{}\n```",
        "{",
        "[",
        "{\"",
        "{\"name",
        "{\"name\"",
        "[TOOL_CALLS]",
        "[T",
        "`",
        "``a",
        "{{\"name\"}}",
        "[[1]]",
        "<|python_",
        "<|python_end|>",
        ";",
        "} ] ;"})
    expect_is_content("a \n" + std::string(text), kJson);
}

TEST(AnswerParserJson, ABrokenOneDoesNotHideTheNext) {
  for (const char* broken :
       {"{", "[", "{\"name\": \"searchTool\", \"parameters\": {\"a\": 1}",
        "{\"name\": \"searchTool", "{\"name\": ", "[{\"a\": 1}]", "{\"a\": 1}", "<|python_tag|>",
        "```json", "[TOOL_CALLS]", "{\"name\": \"otherTool\", \"parameters\": {}}", "}", "<"})
    EXPECT_EQ(parsed(std::string(broken) + "\nx " + kOpen, kJson),
              std::string(broken) + "\nx" + kOpened)
        << broken;
}

TEST(AnswerParserJson, WhatIsCutOffBehindACompleteCallIsContent) {
  const std::string begun = R"({"name": "getOpenIncid)";
  EXPECT_EQ(parsed(kSearch + "; " + begun, kJson), "; " + begun + kSearched);
  EXPECT_EQ(parsed("[" + kSearch + ", " + begun, kJson), ", " + begun + kSearched);
  EXPECT_EQ(parsed("[" + kSearch, kJson), kSearched);
  for (size_t len = 0; len < kSearch.size(); ++len)
    expect_is_content("a \n" + kSearch.substr(0, len), kJson);
}

TEST(AnswerParserJson, ObjectsThatAreNoCallsAreNotHeldBack) {
  AnswerParser parser(kJson);
  EXPECT_EQ(shown(parser.add("{\n  \"na")), "");
  EXPECT_EQ(shown(parser.add("tion\": ")), "{\n  \"nation\": ");
  EXPECT_EQ(shown(parser.add("[")), "[");
  EXPECT_EQ(shown(parser.add("{\"name\": 1}]} ")), "{\"name\": 1}]}");
}

// Mistral's form. The examples are those of vLLM's tests of its parser mistral.

const AnswerParser::Options kMistral{.call_form = CallForm::kMistral,
                                     .tools = {"add", "get_current_weather", "get_age"}};
const std::string kAdd = R"({"name": "add", "arguments":{"a": 3.5, "b": 4}})";
const std::string kAdded = R"(|add({"a": 3.5, "b": 4}))";

TEST(AnswerParserMistral, AListOfObjectsIsCalls) {
  EXPECT_EQ(parsed("[TOOL_CALLS][" + kAdd + "]", kMistral), kAdded);
  EXPECT_EQ(
      parsed(R"([TOOL_CALLS]  [ {"name":"add" , "arguments" : {"a": 3, "b": 4} } ])", kMistral),
      R"(|add({"a": 3, "b": 4}))");
  EXPECT_EQ(
      parsed(R"([TOOL_CALLS] [{"arguments":{"name": "John Doe"}, "name": "get_age"}])", kMistral),
      R"(|get_age({"name": "John Doe"}))");
  EXPECT_EQ(parsed("Sure.\n[TOOL_CALLS][" + kAdd + ", " + kAdd + "]", kMistral),
            "Sure." + kAdded + kAdded);
  EXPECT_EQ(parsed("[TOOL_CALLS]" + kAdd, kMistral), kAdded);
}

TEST(AnswerParserMistral, ANameAndArgumentsAreACall) {
  EXPECT_EQ(parsed(R"([TOOL_CALLS]add{"a": 3.5, "b": 4})", kMistral), kAdded);
  EXPECT_EQ(parsed(R"([TOOL_CALLS]add[ARGS]{"a": 3.5, "b": 4})", kMistral), kAdded);
  EXPECT_EQ(parsed(R"([TOOL_CALLS]add[CALL_ID]abcDEF123[ARGS]{"a": 3.5, "b": 4})", kMistral),
            kAdded);
  EXPECT_EQ(parsed(R"([TOOL_CALLS] add {"a": 3.5, "b": 4} )", kMistral), kAdded);
  EXPECT_EQ(
      parsed("[TOOL_CALLS]add{\"a\": 3.5, \"b\": 4}[TOOL_CALLS]get_age[ARGS]{}\nDone", kMistral),
      "Done" + kAdded + "|get_age({})");
}

TEST(AnswerParserMistral, WhatIsNotACallIsContent) {
  for (const char* text : {"This is a test",
                           "[TOOL_CALLS]",
                           "[TOOL_CALLS]other{}",
                           "[TOOL_CALLS]add",
                           "[1, 2]",
                           "[TOOL_CALLS]add[ARGS]",
                           "[TOOL_CALLS]add[ARG]{}",
                           "[TOOL_CALLS]add{\"a\": }",
                           "[TOOL_CALLS]add [1]",
                           "[TOOL_CALLS]add(1)",
                           "[TOOL_CALLS][]",
                           "[TOOL_CALLS][1]",
                           "[TOOL_CALLS]add{\"a\": 1",
                           "[TOOL_CALLS]{}",
                           "add{\"a\": 1}",
                           "[ARGS]{}",
                           "[TOOL_CALLS][{\"name\": \"other\", \"arguments\": {}}]",
                           "{\"name\": \"add\", \"arguments\": {}}",
                           "[TOOL_C",
                           "[TOOL_CALLS]add[CALL_ID]a[ARGS]"})
    expect_is_content("a \n" + std::string(text), kMistral);
}

TEST(AnswerParserMistral, ABrokenOneDoesNotHideTheNext) {
  for (const char* broken : {"[TOOL_CALLS]", "[TOOL_CALLS]add", "[TOOL_CALLS]add{\"a\": \"b",
                             "[TOOL_CALLS]other{}", "[TOOL_CALLS]add[", "[", "[TOOL_CALLS][",
                             "[TOOL_CALLS]add[ARGS]", "[TOOL_CALLS][{\"name\": \"add\""})
    EXPECT_EQ(parsed(std::string(broken) + "\n[TOOL_CALLS]get_age{}", kMistral),
              std::string(broken) + "|get_age({})")
        << broken;
}

TEST(AnswerParserMistral, WhatIsCutOffBehindACompleteCallIsContent) {
  EXPECT_EQ(parsed("[TOOL_CALLS][" + kAdd + R"(, {"name": "get_)", kMistral),
            R"(, {"name": "get_)" + kAdded);
  EXPECT_EQ(parsed("[TOOL_CALLS][" + kAdd, kMistral), kAdded);
}

TEST(AnswerParserMistral, IdsAreThoseThatItsTemplatesTake) {
  const AnswerParts answer = parse_answer("[TOOL_CALLS][" + kAdd + ", " + kAdd + "]", kMistral);
  ASSERT_EQ(answer.calls.size(), 2);
  for (const ToolCall& call : answer.calls) EXPECT_THAT(call.id, MatchesRegex("[a-z0-9]{9}"));
  EXPECT_NE(answer.calls[0].id, answer.calls[1].id);
}

}  // namespace
}  // namespace nanovllm::server
