#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "answer_parser_checks.h"

namespace nanovllm::server {
namespace {

using namespace server::testing;

using ::testing::StartsWith;

// Thoughts

TEST(AnswerParserReasoning, IsBetweenTheTagsWithoutTheNewlinesAtItsEnds) {
  EXPECT_EQ(parsed("<think>\n\n  a\n\nb \n\n</think>\n\nHello\n", kReasoning),
            "[  a\n\nb ]Hello\n");
  EXPECT_EQ(parsed("<think>a</think>b", kReasoning), "[a]b");
}

TEST(AnswerParserReasoning, IndentationOfTheContentIsKept) {
  EXPECT_EQ(parsed("<think>a</think>\n\n    code", kReasoning), "[a]    code");
}

TEST(AnswerParserReasoning, EmptyThoughtsLeaveOnlyTheContent) {
  EXPECT_EQ(parsed("<think>\n\n</think>\n\nHello", kReasoning), "Hello");
  EXPECT_EQ(parsed("<think></think>", kReasoning), "");
}

TEST(AnswerParserReasoning, WhiteSpaceMayComeBeforeTheTag) {
  EXPECT_EQ(parsed(" \n\t<think>a</think>b", kReasoning), "[a]b");
}

TEST(AnswerParserReasoning, IsOnlyAtTheBeginning) {
  expect_is_content("Write <think>a</think>", kReasoning);
  EXPECT_EQ(parsed("<think>a</think>b<think>c</think>", kReasoning), "[a]b<think>c</think>");
  EXPECT_EQ(parsed("<think>a</think><think>c</think>", kReasoning), "[a]<think>c</think>");
}

TEST(AnswerParserReasoning, BeginsInThePrompt) {
  EXPECT_EQ(parsed("\na\n</think>\n\nb", kBegun), "[a]b");
  EXPECT_EQ(parsed("</think>b", kBegun), "b");
}

TEST(AnswerParserReasoning, ARepeatedTagIsDropped) {
  EXPECT_EQ(parsed("\n<think>\na</think>b", kBegun), "[a]b");
  EXPECT_EQ(parsed("a<think>b</think>c", kBegun), "[a<think>b]c");
}

TEST(AnswerParserReasoning, AnAnswerThatIsCutOffInTheThoughtsHasNoContent) {
  EXPECT_EQ(parsed("<think>\na\n", kReasoning), "[a]");
  EXPECT_EQ(parsed("a\n\n", kBegun), "[a]");
  EXPECT_EQ(parsed("a\n</thi", kBegun), "[a\n</thi]");
  EXPECT_EQ(parsed("<think>", kReasoning), "");
}

TEST(AnswerParserReasoning, AnAnswerThatIsCutOffInTheFirstTagIsContent) {
  expect_is_content("\n<thin", kReasoning);
  expect_is_content(" \n", kReasoning);
  EXPECT_EQ(parsed("<thin", kBegun), "[<thin]");
}

TEST(AnswerParserReasoning, WithoutThoughtsTheContentIsUnchanged) {
  expect_is_content("\n\n Hello </think> \n", kReasoning);
  expect_is_content("<thinking>a</thinking>", kReasoning);
  expect_is_content("<<think>a</think>", kReasoning);
}

TEST(AnswerParserReasoning, IsContentIfItIsNotSplit) {
  expect_is_content("<think>\na\n</think>\n\nb", kPlain);
  expect_is_content("<think>\na\n</think>\n\nb", kTools);
  expect_is_content("a</think>b", {.splits_reasoning = false, .begins_in_reasoning = true});
}

TEST(AnswerParserReasoning, KeepsWhatOnlyLooksLikeTheClosingTag) {
  EXPECT_EQ(parsed("<think>a < b, </thin, <</think>c", kReasoning), "[a < b, </thin, <]c");
  EXPECT_EQ(parsed("<think>\n</t\n</think>c", kReasoning), "[</t]c");
}

// Calls

TEST(AnswerParserCall, HasNameArgumentsAndId) {
  const AnswerParts answer = parse_answer(call_of(R"({"city": "Zürich"})", "get_weather"), kTools);
  ASSERT_EQ(answer.calls.size(), 1);
  EXPECT_EQ(answer.calls[0].name, "get_weather");
  EXPECT_EQ(answer.calls[0].arguments, R"({"city": "Zürich"})");
  EXPECT_THAT(answer.calls[0].id, StartsWith("call_"));
  EXPECT_EQ(answer.content, "");
}

TEST(AnswerParserCall, SeveralHaveTheirOwnIndexesAndIds) {
  const AnswerParts answer =
      parse_answer(call_of("{}") + "\n" + call_of("{}") + call_of("{}"), kTools);
  ASSERT_EQ(answer.calls.size(), 3);
  std::set<std::string> ids;
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(answer.calls[i].index, i);
    ids.insert(answer.calls[i].id);
  }
  EXPECT_EQ(ids.size(), 3);
  EXPECT_EQ(answer.content, "");
}

TEST(AnswerParserCall, OnlyTheFirstOneIsDeliveredIfTheClientWantsNoMore) {
  AnswerParser::Options options = kTools;
  options.parallel_calls = false;
  const AnswerParts answer =
      parse_answer("a" + call_of(R"({"x": 1})") + "\n" + call_of("{}"), options);
  ASSERT_EQ(answer.calls.size(), 1);
  EXPECT_EQ(answer.calls[0].arguments, R"({"x": 1})");
  EXPECT_EQ(answer.content, "a");
}

TEST(AnswerParserCall, ArgumentsAreTheModelsText) {
  // Numbers that a double cannot hold, spaces, escapes, and brackets in strings stay as they are.
  const std::string arguments =
      R"({ "n":12345678901234567890123,  "x": 1.0e2, "s": "\u00e9 }],\"{", "l": [1, {"a":[]}]})";
  EXPECT_EQ(parsed(call_of(" " + arguments + " \n"), kTools), "|f(" + arguments + ")");
}

TEST(AnswerParserCall, KeysMayHaveAnyOrderAndOthersAreIgnored) {
  EXPECT_EQ(parsed(R"(<tool_call>{"arguments":{"arguments":1},"id":[{"arguments":2}],"name":"f"})"
                   "</tool_call>",
                   kTools),
            R"(|f({"arguments":1}))");
  EXPECT_EQ(parsed(R"(<tool_call>{"x":"arguments","name":"f","arguments":{"name":"g"},"y":1})"
                   "</tool_call>",
                   kTools),
            R"(|f({"name":"g"}))");
}

TEST(AnswerParserCall, TheLastOfEqualKeysCounts) {
  EXPECT_EQ(parsed(R"(<tool_call>{"name":"g","name":"f","arguments":1,"arguments":{"a":2}})"
                   "</tool_call>",
                   kTools),
            R"(|f({"a":2}))");
}

TEST(AnswerParserCall, KeysMayHaveEscapes) {
  EXPECT_EQ(parsed(R"(<tool_call>{"n\u0061me":"\u0066","\u0061rguments":{"a": 2}})"
                   "</tool_call>",
                   kTools),
            R"(|f({"a":2}))");
}

TEST(AnswerParserCall, ArgumentsMayBeCalledParameters) {
  EXPECT_EQ(parsed(R"(<tool_call>{"name": "f", "parameters": {"a": 1}}</tool_call>)", kTools),
            R"(|f({"a": 1}))");
}

TEST(AnswerParserCall, ArgumentsMayBeAStringWithAnObject) {
  EXPECT_EQ(parsed(call_of(R"("{\"a\": \"\\n\"}")"), kTools), R"(|f({"a": "\n"}))");
  for (const char* arguments : {R"("")", R"("[1]")", R"("{")", R"("text")"})
    expect_is_content(call_of(arguments), kTools);
}

TEST(AnswerParserCall, AClosingTagInAStringBelongsToIt) {
  EXPECT_EQ(parsed(call_of(R"({"a": "</tool_call>\"<tool_call>"})"), kTools),
            R"(|f({"a": "</tool_call>\"<tool_call>"}))");
}

TEST(AnswerParserCall, NeedsNoWhiteSpaceAndMayHaveMore) {
  EXPECT_EQ(parsed(R"(<tool_call>{"name":"f","arguments":{}}</tool_call>)", kTools), "|f({})");
  EXPECT_EQ(parsed("<tool_call> \r\n\t{\n\"name\"\n:\n\"f\"\n,\n\"arguments\"\n:\n{\n}\n}\n\n "
                   "</tool_call>",
                   kTools),
            "|f({\n})");
}

TEST(AnswerParserCall, WhiteSpaceAroundCallsIsNotContent) {
  EXPECT_EQ(parsed("\n I look. \n\n" + call_of("{}") + "\n\n" + call_of("{}") + " \n", kTools),
            "\n I look.|f({})|f({})");
  EXPECT_EQ(parsed("\n\n" + call_of("{}") + "\n\nDone. ", kTools), "Done. |f({})");
}

TEST(AnswerParserCall, WhiteSpaceAfterItStaysBetweenTwoTexts) {
  EXPECT_EQ(parsed("A\n" + call_of("{}") + " " + call_of("{}") + "\n\nB", kTools),
            "A\n\nB|f({})|f({})");
}

TEST(AnswerParserCall, MayFollowThoughts) {
  EXPECT_EQ(parsed("<think>\na\n</think>\n\n" + call_of("{}"), kAll), "[a]|f({})");
  EXPECT_EQ(parsed("a</think>\n\nb\n" + call_of("{}"), kAllBegun), "[a]b|f({})");
}

TEST(AnswerParserCall, IsNotLookedForInThoughts) {
  const std::string call = call_of("{}");
  EXPECT_EQ(parsed("<think>" + call + "</think>b", kAll), "[" + call + "]b");
  EXPECT_EQ(parsed(call, kAllBegun), "[" + call + "]");
}

TEST(AnswerParserCall, IsContentIfNoFunctionsAreOffered) {
  expect_is_content("a \n" + call_of("{}") + "\n", kPlain);
  expect_is_content(call_of("{}"), kReasoning);
}

TEST(AnswerParserCall, OfAFunctionThatWasNotOfferedIsContent) {
  expect_is_content("a\n" + call_of("{}", "g") + "\n", kTools);
  EXPECT_EQ(parsed(call_of("{}", "g") + "\n" + call_of("{}"), kTools),
            call_of("{}", "g") + "|f({})");
}

TEST(AnswerParserCall, WhatIsNotACallIsContent) {
  for (const char* body : {"",
                           "\n",
                           "f",
                           "null",
                           "[]",
                           "{}",
                           "\"f\"",
                           "{\"name\": \"f\"}",
                           "{\"arguments\": {}}",
                           "{\"name\": 1, \"arguments\": {}}",
                           "{\"name\": [\"f\"], \"arguments\": {}}",
                           "{\"name\": \"f\", \"arguments\": null}",
                           "{\"name\": \"f\", \"arguments\": [1]}",
                           "{\"name\": \"f\", \"arguments\": 1, \"parameters\": {}}",
                           "[{\"name\": \"f\", \"arguments\": {}}]",
                           "{\"x\": {\"name\": \"f\", \"arguments\": {}}}",
                           "{\"name\": \"f\", \"arguments\": {}} x",
                           "{\"name\": \"f\", \"arguments\": {}}}",
                           "{\"name\": \"f\", \"arguments\": {}}{}",
                           "{'name': 'f', 'arguments': {}}"})
    for (const char* end : {"</tool_call>", "\n</tool_call>\n", ""})
      expect_is_content("a <tool_call>" + std::string(body) + end, kTools);
}

TEST(AnswerParserCall, InvalidJsonIsContent) {
  for (const char* arguments :
       {"{\"a\": 1", "{\"a\" 1}", "{\"a\": \"\n\"}", "{\"a\": \"}", "{\"a\": 1,}", "{a: 1}", "{]",
        "{\"a\": [1}]}", "{\"a\": 01}", "{\"a\": \"\\x\"}", "{\"a\": \"\\\n\"}", "{\"a\": 1e999}",
        "{\"a\": \"\\ud800\"}", "{\"a\": \"\xff\"}", "{\"a\": <b>}"})
    expect_is_content(call_of(arguments), kTools);
  expect_is_content("<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": \"" +
                        std::string(1, '\0') + "\"}}</tool_call>",
                    kTools);
}

TEST(AnswerParserCall, TooDeepJsonIsContent) {
  const auto nested = [](size_t depth) {
    return "{\"a\":" + std::string(depth, '[') + std::string(depth, ']') + "}";
  };
  EXPECT_EQ(parsed(call_of(nested(100)), kTools), "|f(" + nested(100) + ")");
  expect_is_content(call_of(nested(100'000)), kTools);
}

TEST(AnswerParserCall, ABrokenOneDoesNotHideTheNext) {
  for (const char* broken :
       {"The tag <tool_call> begins a call.", "<tool_call>", "<tool_call>\n{",
        "<tool_call>{\"a\": \"x",
        "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": \"x}}\n</tool_call>",
        "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": 1}\n</tool_call>",
        "<tool_call>{\"name\": \"f\", \"arguments\": {}}", "<tool_call>[]</tool_call>",
        "</tool_call>", "<tool_call", "<"})
    EXPECT_EQ(parsed(std::string(broken) + "\n" + call_of("{}"), kTools),
              std::string(broken) + "|f({})")
        << broken;
}

TEST(AnswerParserCall, DoubledTagsAreContentAroundIt) {
  EXPECT_EQ(parsed("<tool_call>" + call_of("{}") + "</tool_call>", kTools),
            "<tool_call></tool_call>|f({})");
}

TEST(AnswerParserCall, MayLackTheClosingTagAtTheEnd) {
  const std::string json = R"({"name": "f", "arguments": {}})";
  for (const char* end : {"", "\n", "\n</tool_", "</tool_call"})
    EXPECT_EQ(parsed("a\n<tool_call>\n" + json + end, kTools), "a|f({})") << end;
  expect_is_content("<tool_call>" + json + "</tool_x", kTools);
  expect_is_content("<tool_call>" + call_of("{}", "g").substr(12, 31), kTools);
}

TEST(AnswerParserCall, ThatIsCutOffIsContent) {
  const std::string call = call_of(R"({"a": "b\"c", "d": [1, 2]})");
  const size_t json_end = call.find_last_of('}') + 1;
  for (size_t len = 0; len < json_end; ++len)
    expect_is_content("a \n" + call.substr(0, len), kTools);
  EXPECT_EQ(parse_answer(call.substr(0, json_end), kTools).calls.size(), 1);
}

}  // namespace
}  // namespace nanovllm::server
