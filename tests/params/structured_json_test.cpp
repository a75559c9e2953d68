#include "nanovllm/params/structured_json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "nanovllm/base/config.h"
#include "nanovllm/base/error.h"
#include "nanovllm/params/sampling_json.h"

namespace nanovllm::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;
using ::testing::ThrowsMessage;

/// The fields of a body as sampling parameters.
Json sampling_of(const std::string& body) {
  Json sampling = Json::object();
  const Json fields = parse_json(body, "body");
  for (const auto& [name, value] : fields.items())
    if (!take_form(name, value, /*in_body=*/true, sampling)) ADD_FAILURE() << name;
  return sampling;
}

std::optional<StructuredOutputs> form_of(const std::string& body) {
  return sampling_params_from_json(sampling_of(body), {}, "here").constraint;
}

void expect_refused(const std::string& body, const std::string& name, const std::string& what) {
  EXPECT_THAT([&] { sampling_params_from_json(sampling_of(body), {}, "here"); },
              ThrowsMessage<UserError>(HasSubstr(what)))
      << body;
  // Also a wrong value of the form is found by itself, and named.
  try {
    sampling_params_from_json(sampling_of(body), {}, "here");
  } catch (const UserError& e) {
    const std::string text = e.what();
    EXPECT_THAT(text.starts_with("here: ") ? text.substr(6) : text, StartsWith(name));
  }
}

TEST(StructuredJson, HasVllmsNames) {
  EXPECT_EQ(*form_of(R"({"structured_outputs": {"json": {"type": "object"}}})")->json,
            R"({"type":"object"})");
  EXPECT_EQ(*form_of(R"({"structured_outputs": {"json": "{}", "regex": null}})")->json, "{}");
  EXPECT_EQ(*form_of(R"({"structured_outputs": {"regex": "a+", "backend": "auto"}})")->regex, "a+");
  EXPECT_THAT(form_of(R"({"structured_outputs": {"choice": ["a", "b"]}})")->choice,
              ElementsAre("a", "b"));
  EXPECT_EQ(*form_of(R"({"structured_outputs": {"grammar": "start: \"a\""}})")->grammar,
            "start: \"a\"");
  EXPECT_TRUE(form_of(R"({"structured_outputs": {"json_object": true}})")->json_object);
  EXPECT_EQ(
      *form_of(R"({"structured_outputs": {"structural_tag": {"format": {}}}})")->structural_tag,
      R"({"format":{}})");
  const auto more = form_of(R"({"structured_outputs": {"json": {}, "whitespace_pattern": " ?",
      "disable_any_whitespace": true, "disable_additional_properties": true}})");
  EXPECT_EQ(more->whitespace_pattern, " ?");
  EXPECT_TRUE(more->disable_any_whitespace && more->disable_additional_properties);
}

TEST(StructuredJson, WhatItWritesItReads) {
  StructuredOutputs form;
  form.choice = {"a", "b"};
  form.whitespace_pattern = " ";
  form.disable_any_whitespace = form.disable_additional_properties = true;
  EXPECT_EQ(structured_outputs_from_json(to_json(form)), form);
  form = {};
  form.json_object = true;
  EXPECT_EQ(structured_outputs_from_json(to_json(form)), form);
}

TEST(StructuredJson, OtherFieldsMeanTheSame) {
  EXPECT_EQ(*form_of(R"({"guided_json": {"a": 1}, "guided_whitespace_pattern": " ",
                         "guided_decoding_backend": "xgrammar"})")
                 ->json,
            R"({"a":1})");
  EXPECT_EQ(*form_of(R"({"guided_regex": "a", "guided_json": null})")->regex, "a");
  EXPECT_THAT(form_of(R"({"guided_choice": ["a"]})")->choice, ElementsAre("a"));
  EXPECT_EQ(*form_of(R"({"guided_grammar": "g"})")->grammar, "g");
  EXPECT_EQ(*form_of(R"({"ebnf": "g"})")->grammar, "g");
  EXPECT_EQ(*form_of(R"({"regex": "g"})")->regex, "g");
  EXPECT_EQ(*form_of(R"({"json_schema": "{}"})")->json, "{}");
  Json sampling;
  EXPECT_FALSE(take_form("regex", "a", /*in_body=*/false, sampling));  // the user's own in a line
  EXPECT_FALSE(take_form("temperature", 1, /*in_body=*/true, sampling));
}

TEST(StructuredJson, ResponseFormatIsOpenAis) {
  EXPECT_FALSE(form_of(R"({"response_format": {"type": "text"}})"));
  EXPECT_FALSE(form_of(R"({"response_format": null})"));
  EXPECT_TRUE(form_of(R"({"response_format": {"type": "json_object"}})")->json_object);
  EXPECT_EQ(*form_of(R"({"response_format": {"type": "json_schema", "json_schema": {"name": "n",
                         "strict": true, "schema": {"type": "array"}}}})")
                 ->json,
            R"({"type":"array"})");
  for (const bool strict : {false, true})
    EXPECT_EQ(form_of(R"({"response_format": {"type": "json_schema", "json_schema": {"schema": {},
                         "strict": )" +
                      std::string(strict ? "true" : "false") + "}}}")
                  ->disable_additional_properties,
              strict);
  EXPECT_EQ(*form_of(R"({"response_format": {"type": "json_object", "schema": {}}})")->json, "{}");
  EXPECT_EQ(
      *form_of(R"({"response_format": {"type": "structural_tag", "format": {}}})")->structural_tag,
      R"({"type":"structural_tag","format":{}})");
  // vLLM's options may stand beside it.
  EXPECT_TRUE(form_of(R"({"response_format": {"type": "json_object"},
                          "structured_outputs": {"disable_any_whitespace": true}})")
                  ->disable_any_whitespace);
}

TEST(StructuredJson, WrongValuesAreRefusedByName) {
  expect_refused(R"({"structured_outputs": []})", "structured_outputs", "must be an object");
  expect_refused(R"({"structured_outputs": {}})", "structured_outputs", "no form");
  expect_refused(R"({"structured_outputs": {"json_object": false}})", "structured_outputs",
                 "no form");
  expect_refused(R"({"structured_outputs": {"regex": "a", "json": {}}})", "structured_outputs",
                 "json and regex");
  expect_refused(R"({"structured_outputs": {"regx": "a"}})", "structured_outputs",
                 "did you mean 'regex'");
  expect_refused(R"({"structured_outputs": {"choice": []}})", "structured_outputs",
                 "wrong choice: it must be a list of at least one text");
  expect_refused(R"({"structured_outputs": {"json": 5}})", "structured_outputs", "wrong json");
  expect_refused(R"({"guided_choice": "a"})", "guided_choice", "list of at least one text");
  expect_refused(R"({"guided_json": {}, "guided_regex": "a"})", "guided_regex",
                 "a second form of the answer; another field has given json");
  expect_refused(R"({"guided_json": {}, "response_format": {"type": "json_object"}})",
                 "response_format", "second form");
  expect_refused(R"({"response_format": 5})", "response_format", "an object with a type, not 5");
  expect_refused(R"({"response_format": {"type": "xml"}})", "response_format", "the type \"xml\"");
  expect_refused(R"({"response_format": {"type": "json_schema", "json_schema": {}}})",
                 "response_format", "json_schema.schema must be");
}

}  // namespace
}  // namespace nanovllm::testing
