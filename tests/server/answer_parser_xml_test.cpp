#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "answer_parser_checks.h"

namespace nanovllm::server {
namespace {

using namespace server::testing;

// The tools of vLLM's tests of its parser qwen3_coder, and one more.
const OfferedTools kOffered = OfferedTools::of(Json::parse(R"([
  {"function": {"name": "get_current_weather", "parameters": {
    "type": "object", "required": ["city", "state"], "properties": {
      "city": {"type": "string"}, "state": {"type": "string"},
      "unit": {"type": "string", "enum": ["fahrenheit", "celsius"]}}}}},
  {"function": {"name": "calculate_area", "parameters": {"type": "object", "properties": {
    "shape": {"type": "string"}, "dimensions": {"type": "object"},
    "precision": {"type": "integer"}}}}},
  {"function": {"name": "now"}}])"));
const AnswerParser::Options kXml{.call_form = CallForm::kXml, .tools = kOffered};
const AnswerParser::Options kAuto{.splits_reasoning = true, .tools = kOffered};

std::string parameter(const std::string& name, const std::string& value) {
  return "<parameter=" + name + ">\n" + value + "\n</parameter>\n";
}
std::string function(const std::string& name, const std::string& parameters) {
  return "<function=" + name + ">\n" + parameters + "</function>";
}
std::string xml_call(const std::string& name, const std::string& parameters) {
  return "<tool_call>\n" + function(name, parameters) + "\n</tool_call>";
}
const std::string kDallas = parameter("city", "Dallas") + parameter("state", "TX");
const std::string kDallasShown = R"(|get_current_weather({"city": "Dallas", "state": "TX"}))";

TEST(AnswerParserXml, ACallHasNameAndArguments) {
  const std::string text = xml_call("get_current_weather", kDallas + parameter("unit", "celsius"));
  for (const auto& options : {kXml, kAuto})
    EXPECT_EQ(parsed(text, options),
              R"(|get_current_weather({"city": "Dallas", "state": "TX", "unit": "celsius"}))");
}

TEST(AnswerParserXml, ValuesHaveTheTypesOfTheSchema) {
  EXPECT_EQ(
      parsed(xml_call("calculate_area",
                      parameter("shape", "7") +
                          parameter("dimensions", "{\"width\": 10, \n \"height\": 20}") +
                          parameter("precision", "2") + parameter("other", "3")),
             kXml),
      "|calculate_area({\"shape\": \"7\", \"dimensions\": {\"width\": 10, \n \"height\": 20}, "
      "\"precision\": 2, \"other\": \"3\"})");
}

TEST(AnswerParserXml, ValuesKeepAllButOneNewlineAtEachEnd) {
  const std::string code = "\n  if a < b && c > \"d\":\n\t\\n é </b> <tool_call>{}</tool_call>\n";
  EXPECT_EQ(
      parsed(xml_call("now", parameter("code", code)), kXml),
      R"(|now({"code": "\n  if a < b && c > \"d\":\n\t\\n é </b> <tool_call>{}</tool_call>\n"}))");
  EXPECT_EQ(
      parsed("<function=now><parameter=a>1</parameter><parameter=b></parameter></function>", kXml),
      R"(|now({"a": "1", "b": ""}))");
  EXPECT_EQ(parsed("<function=now><parameter=a>\n</parameter></function>", kXml),
            R"(|now({"a": ""}))");
}

TEST(AnswerParserXml, ACallMayHaveNoParameters) {
  EXPECT_EQ(parsed(xml_call("now", ""), kXml), "|now({})");
  EXPECT_EQ(parsed("<function=now></function>", kXml), "|now({})");
}

TEST(AnswerParserXml, TheOuterTagsMayBeMissing) {
  const std::string inner = function("get_current_weather", kDallas);
  EXPECT_EQ(parsed("I look.\n\n" + inner + "\n</tool_call>", kXml), "I look." + kDallasShown);
  EXPECT_EQ(parsed(inner, kAuto), kDallasShown);
  EXPECT_EQ(parsed(inner + "\n" + inner, kAuto), kDallasShown + kDallasShown);
  EXPECT_EQ(parsed("<tool_call>\n" + inner + "\n<tool_call>\n" + inner, kXml),
            kDallasShown + kDallasShown);
  EXPECT_EQ(parsed("<tool_call>" + inner + inner + "</tool_call>\nDone", kXml),
            "Done" + kDallasShown + kDallasShown);
}

TEST(AnswerParserXml, AClosingTagBeforeTheNextTagMayBeMissing) {
  EXPECT_EQ(parsed("Let me check:\n<tool_call>\n<function=get_current_weather>\n<parameter=city>\n"
                   "Dallas\n<parameter=state>\nTX\n</function>\n</tool_call>",
                   kXml),
            "Let me check:" + kDallasShown);
  EXPECT_EQ(
      parsed("<tool_call>\n<function=get_current_weather>\n" + kDallas + "</tool_call>", kXml),
      kDallasShown);
}

TEST(AnswerParserXml, AnAnswerThatIsCutOffBehindAParameterEndsWithACall) {
  const std::string begun = "<tool_call>\n<function=get_current_weather>\n" + kDallas;
  for (const char* end : {"", "</", "</function", "</function>\n</tool", "</tool_c", "\n"})
    EXPECT_EQ(parsed("a\n" + begun + end, kXml), "a" + kDallasShown) << end;
  for (const char* end : {"<", "<par", "<parameter=unit>\n", "<parameter=unit>\ncel", "x"})
    expect_is_content("a\n" + begun + end, kXml);
  // A parameter that every call has is missing.
  expect_is_content("<tool_call>\n<function=get_current_weather>\n" + parameter("city", "Dallas"),
                    kXml);
  expect_is_content("<tool_call>\n<function=now>\n", kXml);
}

TEST(AnswerParserXml, ACallThatIsCutOffIsContent) {
  const std::string call = xml_call("get_current_weather", kDallas);
  for (size_t len = 0; len < call.find("</parameter>\n</function>"); ++len)
    expect_is_content("a \n" + call.substr(0, len), kXml);
}

TEST(AnswerParserXml, OnlyTheEndOfTheAnswerClosesAValueWithTheOuterTag) {
  EXPECT_EQ(parsed("<tool_call>\n<function=now>\n<parameter=a>\n1\n</tool_call>\n", kXml),
            R"(|now({"a": "1"}))");
  EXPECT_EQ(parsed(xml_call("now", parameter("a", "1\n</tool_call>\n2")), kXml),
            R"(|now({"a": "1\n</tool_call>\n2"}))");
}

TEST(AnswerParserXml, ALaterValueReplacesTheEarlierOne) {
  EXPECT_EQ(parsed(xml_call("now", parameter("a", "1") + parameter("b", "2") + parameter("a", "3")),
                   kXml),
            R"(|now({"a": "3", "b": "2"}))");
}

TEST(AnswerParserXml, NamesAndValuesAreEscapedInTheJson) {
  EXPECT_EQ(parsed(xml_call("now", parameter("a \"b", "c\"\\")), kXml),
            R"(|now({"a \"b": "c\"\\"}))");
}

TEST(AnswerParserXml, TextBetweenCallsIsContent) {
  const std::string call = xml_call("get_current_weather", kDallas);
  EXPECT_EQ(parsed("A\n" + call + "\n\nB\n" + call + "\nC", kXml),
            "A\n\nB\nC" + kDallasShown + kDallasShown);
  EXPECT_EQ(parsed("\n" + call + " \n" + call + "\n", kXml), kDallasShown + kDallasShown);
}

TEST(AnswerParserXml, BothFormsOfTagsMayMix) {
  EXPECT_EQ(parsed("<think>a</think>\n" + call_of("{}", "now") + "\n" + xml_call("now", "") + "\n" +
                       call_of("{\"b\": 1}", "now"),
                   kAuto),
            R"([a]|now({})|now({})|now({"b": 1}))");
}

TEST(AnswerParserXml, TheNameOfAParserReadsOnlyItsForm) {
  expect_is_content(call_of("{}", "now"), kXml);
  expect_is_content(xml_call("now", ""), {.call_form = CallForm::kHermes, .tools = kOffered});
}

TEST(AnswerParserXml, WhatIsNotACallIsContent) {
  for (const char* text :
       {"<function=other>\n</function>", "<tool_call>\n<function=other>\n</function>\n</tool_call>",
        "<tool_call>\n<function>now</function>", "<function=now\n></function>",
        "<function=now>text</function>", "<function=now>\n<parameter>1</parameter></function>",
        "<function=now>\n<parameter=a\n>1</parameter></function>", "<function=now", "<function",
        "</function>", "<parameter=a>1</parameter>", "</tool_call>", "<tool_call></tool_call>",
        "<function= now></function>", "<tool_call>now</tool_call>", "a <function=b"})
    for (const auto& options : {kXml, kAuto}) expect_is_content(text, options);
}

TEST(AnswerParserXml, ABrokenOneDoesNotHideTheNext) {
  for (const char* broken : {"<tool_call>", "<function=", "<function=now", "<function=other>",
                             "<function=now>x", "<tool_call>\n<tool_call>", "<function=<function=",
                             "<function=now>\n<parameter=a", "</tool_call>", "<", "<function"})
    for (const auto& options : {kXml, kAuto})
      EXPECT_EQ(parsed(std::string(broken) + "\n" + xml_call("now", ""), options),
                std::string(broken) + "|now({})")
          << broken;
}

TEST(AnswerParserXml, ACallIsDeliveredWhenItsFunctionEnds) {
  AnswerParser parser(kXml);
  const std::string call = "<tool_call>\n" + function("now", parameter("a", "1"));
  for (const char c : call.substr(0, call.size() - 1))
    EXPECT_TRUE(parser.add(std::string(1, c)).empty());
  EXPECT_EQ(shown(parser.add(">")), R"(|now({"a": "1"}))");
  EXPECT_TRUE(parser.add("\n</tool_call>").empty());
  EXPECT_TRUE(parser.finish().empty());
}

}  // namespace
}  // namespace nanovllm::server
