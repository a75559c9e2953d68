#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "nanovllm/server/conversation/calls/call_form.h"

namespace nanovllm::server {
namespace {

// Names and templates

TEST(CallForms, HaveTheNamesOfVllmsParsers) {
  for (const auto& [name, form] : {std::pair("hermes", CallForm::kHermes),
                                   {"qwen3", CallForm::kHermes},
                                   {"qwen3_xml", CallForm::kXml},
                                   {"qwen3_coder", CallForm::kXml},
                                   {"llama3_json", CallForm::kJson},
                                   {"llama4_json", CallForm::kJson},
                                   {"xlam", CallForm::kJson},
                                   {"pythonic", CallForm::kPythonic},
                                   {"llama4_pythonic", CallForm::kPythonic},
                                   {"mistral", CallForm::kMistral}})
    EXPECT_EQ(call_form_named(name), form) << name;
  for (const char* name : {"", "auto", "Hermes", "kimi_k2"})
    EXPECT_EQ(call_form_named(name), std::nullopt) << name;
}

CallForm form_of(const std::string& source) {
  return call_form_of_template(
      [&](std::string_view text) { return source.find(text) != std::string::npos; });
}

TEST(CallForms, FollowFromTheChatTemplate) {
  EXPECT_EQ(form_of("{{ messages }}"), CallForm::kTags);
  EXPECT_EQ(form_of("<tool_call>\n{\"name\": ..., \"arguments\": ...}"), CallForm::kTags);
  EXPECT_EQ(form_of("<tool_call>\n<function=example_function_name>"), CallForm::kTags);
  EXPECT_EQ(form_of("{{ '[TOOL_CALLS]' }}"), CallForm::kMistral);
  EXPECT_EQ(form_of("{{ '<|python_tag|>' }}"), CallForm::kJson);
  EXPECT_EQ(form_of("[func_name1(params_name1=params_value1)]"), CallForm::kPythonic);
}

TEST(CallForms, OfPublishedTemplates) {
  const std::filesystem::path folder = NANOVLLM_SOURCE_DIR "/../shared/data/templates";
  if (!std::filesystem::exists(folder)) GTEST_SKIP() << folder << " does not exist";
  const std::pair<const char*, CallForm> kExpected[] = {
      {"llama.cpp__Qwen-Qwen3-0.6B", CallForm::kTags},
      {"llama.cpp__Qwen3-Coder", CallForm::kTags},
      {"llama.cpp__NousResearch-Hermes-3-Llama-3.1-8B-tool_use", CallForm::kTags},
      {"llama.cpp__meta-llama-Llama-3.1-8B-Instruct", CallForm::kJson},
      {"llama.cpp__meta-llama-Llama-3.2-3B-Instruct", CallForm::kJson},
      {"llama.cpp__meta-llama-Llama-3.3-70B-Instruct", CallForm::kJson},
      {"vllm__tool_chat_template_llama3.1_json", CallForm::kJson},
      {"vllm__tool_chat_template_llama4_json", CallForm::kJson},
      {"vllm__tool_chat_template_llama3.2_pythonic", CallForm::kPythonic},
      {"vllm__tool_chat_template_llama4_pythonic", CallForm::kPythonic},
      {"vllm__tool_chat_template_toolace", CallForm::kPythonic},
      {"llama.cpp__Mistral-Small-3.2-24B-Instruct-2506", CallForm::kMistral},
      {"llama.cpp__mistralai-Mistral-Nemo-Instruct-2407", CallForm::kMistral},
      {"llama.cpp__mistralai-Ministral-3-14B-Reasoning-2512", CallForm::kMistral},
      {"vllm__tool_chat_template_mistral_parallel", CallForm::kMistral},
      {"llama.cpp__google-gemma-2-2b-it", CallForm::kTags}};
  for (const auto& [name, form] : kExpected) {
    std::ifstream file(folder / (std::string(name) + ".jinja"));
    std::ostringstream source;
    source << file.rdbuf();
    ASSERT_FALSE(source.str().empty()) << name;
    EXPECT_EQ(form_of(source.str()), form) << name;
  }
}

// Schemas

ValueTypes types_of(const std::string& schema) {
  const Json root = Json::parse(R"({"$defs": {"Color": {"enum": ["red", "green"]}, "Both": {"anyOf":
    [{"$ref": "#/$defs/Color"}, {"type": "null"}]}, "Loop": {"anyOf": [{"$ref": "#/$defs/Loop"},
    {"$ref": "#/$defs/Loop"}]}, "a/b": {"type": "array"}}})");
  return types_of_schema(Json::parse(schema), root);
}

TEST(ValueTypes, AreThoseThatTheSchemaAllows) {
  for (const auto& [schema, types] : std::vector<std::pair<const char*, ValueTypes>>{
           {R"({"type": "string"})", kStringValue},
           {R"({"type": "integer", "minimum": 1})", kIntegerValue},
           {R"({"type": ["number", "null"]})", kNumberValue | kNullValue},
           {R"({"type": "float"})", kNumberValue},
           {R"({"anyOf": [{"type": "boolean"}, {"type": "array", "items": {"type": "string"}}]})",
            kBooleanValue | kArrayValue},
           {R"({"oneOf": [{"type": "object", "properties": {"a": {"type": "string"}}}]})",
            kObjectValue},
           {R"({"allOf": [{"$ref": "#/$defs/Color"}]})", kStringValue},
           {R"({"$ref": "#/$defs/Both"})", kStringValue | kNullValue},
           {R"({"$ref": "#/$defs/a~1b"})", kArrayValue},
           {R"({"enum": [1, 2.5, null, true, "x"]})",
            kIntegerValue | kNumberValue | kNullValue | kBooleanValue | kStringValue},
           {R"({"const": {}})", kObjectValue},
           {R"({"type": "integer", "nullable": true})", kIntegerValue | kNullValue},
           {R"({"$ref": "#/$defs/Loop"})", 0},
           {R"({"$ref": "#/$defs/None"})", 0},
           {R"({"$ref": "#/$defs/~"})", 0},
           {R"({"$ref": "http://a.b"})", 0},
           {R"({"$ref": 1})", 0},
           {R"({"type": 1, "anyOf": 2, "enum": 3})", 0},
           {R"({"description": "anything"})", 0},
           {"true", 0}})
    EXPECT_EQ(types_of(schema), types) << schema;
}

TEST(ValueTypes, DecideHowAValueIsRead) {
  struct Case {
    const char* text;
    ValueTypes types;
    const char* json;
  };
  const ValueTypes kText = kStringValue;
  for (const Case& c : {Case{"12", 0, R"("12")"},
                        {"12", kText, R"("12")"},
                        {"null", kText, R"("null")"},
                        {"{\"a\": 1}", kText, R"("{\"a\": 1}")"},
                        {"12", kIntegerValue, "12"},
                        {" 12\n", kIntegerValue, "12"},
                        {"-7", kNumberValue, "-7"},
                        {"12345678901234567890123", kIntegerValue, "12345678901234567890123"},
                        {"1.50", kNumberValue, "1.50"},
                        {"2e3", kNumberValue, "2e3"},
                        {"1.5", kIntegerValue, R"("1.5")"},
                        {"twelve", kIntegerValue, R"("twelve")"},
                        {"007", kIntegerValue, R"("007")"},
                        {"1e999", kNumberValue, R"("1e999")"},
                        {"", kIntegerValue, R"("")"},
                        {"true", kBooleanValue, "true"},
                        {"False", kBooleanValue, "false"},
                        {"yes", kBooleanValue, R"("yes")"},
                        {"1", kBooleanValue, R"("1")"},
                        {"null", kIntegerValue, "null"},
                        {"None", kObjectValue, "null"},
                        {"null", kText | kNullValue, "null"},
                        {"None", kText | kNullValue, R"("None")"},
                        {"12", kText | kIntegerValue, "12"},
                        {"x", kText | kIntegerValue, R"("x")"},
                        {"[1,  2]", kArrayValue, "[1,  2]"},
                        {"\n{\"a\": 1.0}\n", kObjectValue, "{\"a\": 1.0}"},
                        {"{'a': True}", kObjectValue, R"({"a": true})"},
                        {"[1, 2", kArrayValue, R"("[1, 2")"},
                        {"a, b", kArrayValue, R"("a, b")"}})
    EXPECT_EQ(json_of_value(c.text, c.types), c.json) << c.text << " " << c.types;
}

}  // namespace
}  // namespace nanovllm::server
