#include "nanovllm/server/conversation/call_constraint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "nanovllm/server/http/api_error.h"

namespace nanovllm::server {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

const Json kOffered = Json::parse(R"([
    {"function": {"name": "f", "strict": true, "parameters": {"type": "object", "required": ["x"],
                  "properties": {"x": {"type": "integer"}}}}},
    {"function": {"name": "g", "parameters": {"properties": {"y": {}}}}},
    {"function": {"name": "h"}}])");

/// The format of the structural tag; null if there is none.
Json format_of(const WrittenCalls& written, const CallRules& rules,
               const std::optional<StructuredOutputs>& answer = {}) {
  const auto form = constraint_of_calls(written, kOffered, rules, answer);
  if (!form) return {};
  return parse_json(form->structural_tag.value(), "tag")["format"];
}

CallRules forced(std::vector<std::string> names) {
  return {.must_call = true, .names = std::move(names)};
}

TEST(CallConstraint, ForcedCallsAreAllOfTheAnswer) {
  const Json format = format_of({}, forced({"f", "g"}));
  EXPECT_EQ(format["type"], "tags_with_separator");
  EXPECT_EQ(format["separator"], "\n");
  EXPECT_EQ(format["at_least_one"], true);
  EXPECT_EQ(format["stop_after_first"], false);
  ASSERT_EQ(format["tags"].size(), 2u);
  const Json& f = format["tags"][size_t{0}];
  EXPECT_EQ(f["begin"], "<tool_call>\n{\"name\": \"f\", \"arguments\": ");
  Json parameters = kOffered[size_t{0}]["function"]["parameters"];
  parameters["additionalProperties"] = false;
  EXPECT_EQ(f["content"]["json_schema"], parameters);
  EXPECT_EQ(f["end"], "}\n</tool_call>");
  const Json& g = format["tags"][size_t{1}]["content"]["json_schema"];
  EXPECT_EQ(g["type"], "object");
  EXPECT_TRUE(g.contains("properties"));
  EXPECT_EQ(format_of({}, forced({"h"}))["tags"].size(), 1u);
}

TEST(CallConstraint, OneCallIfOthersAreNotWanted) {
  CallRules rules = forced({"f"});
  rules.parallel = false;
  EXPECT_EQ(format_of({}, rules)["stop_after_first"], true);
  EXPECT_EQ(format_of({.takes_several = false}, forced({"f"}))["stop_after_first"], true);
}

TEST(CallConstraint, OnlyStrictFunctionsConstrainAnAnswerThatMayCallThem) {
  EXPECT_TRUE(format_of({}, {.names = {"g", "h"}}).is_null());
  EXPECT_TRUE(format_of({.opening_is_special = true}, {.names = {"f"}}).is_null());
  EXPECT_TRUE(format_of({.form = CallForm::kPythonic}, {.names = {"f"}}).is_null());
  const Json format = format_of({}, {.parallel = false, .names = {"f", "g"}});
  EXPECT_EQ(format["type"], "triggered_tags");
  EXPECT_EQ(format["triggers"], Json::array({"<tool_call>"}));
  EXPECT_EQ(format["stop_after_first"], true);
  EXPECT_EQ(format["tags"][size_t{0}]["content"]["json_schema"]["required"], Json::array({"x"}));
  EXPECT_EQ(format["tags"][size_t{1}]["content"]["json_schema"], Json({{"type", "object"}}));
  // Other JSON objects stay free.
  EXPECT_EQ(format_of({.form = CallForm::kJson}, {.names = {"f"}})["triggers"],
            Json::array({"{\"name\": \"f\", \"parameters\": "}));
}

TEST(CallConstraint, AnAnswerOfAFormMayBeCallsInstead) {
  StructuredOutputs answer;
  answer.json = R"({"type":"integer"})";
  answer.disable_any_whitespace = true;
  const auto form = constraint_of_calls({}, kOffered, {.names = {"g"}}, answer);
  EXPECT_TRUE(form->disable_any_whitespace);
  const Json format = parse_json(*form->structural_tag, "tag")["format"];
  EXPECT_EQ(format["type"], "or");
  EXPECT_EQ(format["elements"][size_t{0}]["json_schema"]["type"], "integer");
  EXPECT_EQ(format["elements"][size_t{1}]["type"], "tags_with_separator");
  EXPECT_EQ(format_of({}, forced({"g"}), answer)["type"], "tags_with_separator");
  answer = {};
  answer.choice = {"a", "b"};
  EXPECT_EQ(format_of({}, {.names = {"g"}}, answer)["elements"][size_t{0}]["type"], "or");
}

TEST(CallConstraint, EachFormHasItsTexts) {
  const auto tag = [](const Json& format) { return format["tags"][size_t{0}]; };
  const Json xml = tag(format_of({.form = CallForm::kXml}, forced({"f"})));
  EXPECT_EQ(xml["begin"], "<tool_call>\n<function=f>\n");
  EXPECT_EQ(xml["content"]["style"], "qwen_xml");
  EXPECT_EQ(xml["end"], "</function>\n</tool_call>");
  const Json json = tag(format_of({.form = CallForm::kJson}, forced({"f"})));
  EXPECT_EQ(json["begin"], "{\"name\": \"f\", \"parameters\": ");
  const Json newer =
      tag(format_of({.form = CallForm::kMistral, .names_first = true}, forced({"f"})));
  EXPECT_EQ(newer["begin"], "[TOOL_CALLS]f[ARGS]");
  const Json list = format_of({.form = CallForm::kMistral}, forced({"f"}));
  EXPECT_EQ(list["elements"][size_t{0}]["value"], "[TOOL_CALLS] [");
  EXPECT_EQ(list["elements"][size_t{1}]["separator"], ", ");
  EXPECT_EQ(list["elements"][size_t{2}]["value"], "]");
  EXPECT_THAT([] { format_of({.form = CallForm::kPythonic}, forced({"f"})); },
              ThrowsMessage<ApiError>(HasSubstr("writes calls in Python")));
}

TEST(CallConstraint, WrongFunctionsAreRefused) {
  const auto refuse = [](const char* function, CallForm form, const char* what) {
    const Json tools = Json::array({{{"function", Json::parse(function)}}});
    const CallRules rules = forced({tools[size_t{0}]["function"]["name"].string()});
    EXPECT_THAT([&] { constraint_of_calls({.form = form}, tools, rules, {}); },
                ThrowsMessage<ApiError>(HasSubstr(what)));
  };
  refuse(R"({"name": "f", "parameters": 5})", CallForm::kHermes, "function \"f\" must be a schema");
  refuse(R"({"name": "f", "parameters": {"type": "array"}})", CallForm::kHermes, "\"object\"");
  refuse(R"({"name": "f>"})", CallForm::kXml, "cannot write the name");
  const CallRules rules = forced({"f", "h"});
  EXPECT_EQ(message_about_tools("structured_outputs: /format/tags/1/content/json_schema: #/not: no",
                                kOffered, rules),
            "tools: the parameters of the function \"h\": #/not: no");
  EXPECT_FALSE(message_about_tools("structured_outputs: something else", kOffered, rules));
}

}  // namespace
}  // namespace nanovllm::server
