#include <fmt/format.h>
#include <gmock/gmock.h>

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "nanovllm/text/grammar/schema/json_schema.h"
#include "tests/text/grammar_language.h"
#include "tests/text/tokenizer_files.h"

namespace nanovllm::grammar {

namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;
using Strings = std::vector<std::string>;

const std::string kStructured = std::string(NANOVLLM_SOURCE_DIR) + "/../shared/goldens/structured/";

std::function<Expr(Expressions&)> schema(const Json& spec, const JsonSchemaOptions& options = {}) {
  return [=](Expressions& e) { return parse_json_schema(e, spec, options, "schema"); };
}

struct SchemaCase {
  const char* schema;
  Strings accepted, refused;
};

void check_schemas(const std::vector<SchemaCase>& cases, const JsonSchemaOptions& options = {}) {
  for (const SchemaCase& c : cases) {
    SCOPED_TRACE(c.schema);
    const Json spec = Json::parse(c.schema);
    Language language(schema(spec, options));
    for (const std::string& text : c.accepted) EXPECT_TRUE(language.has(text)) << text;
    for (const std::string& text : c.refused) EXPECT_FALSE(language.has(text)) << text;
  }
}

TEST(JsonSchema, MembersStandInTheOrderOfTheSchema) {
  check_schemas({
      {R"({"properties":{"a":{},"b":{}},"required":["z","a"]})",
       {R"({"a":1,"z":2})", R"({"a":1,"b":1,"z":2,"other":3})"},
       {R"({"z":2,"a":1})", R"({"b":1,"a":1,"z":1})", R"({"a":1,"other":3,"z":1})",
        R"({"a":1,"a":1,"z":2})"}},
      {R"({"allOf":[{"properties":{"a":{}}},{"$ref":"#/$defs/x"}],"properties":{"c":{}},
           "$defs":{"x":{"properties":{"b":{}}}}})",
       {R"({"a":1,"b":2,"c":3})"},
       {R"({"c":3,"a":1})", R"({"b":2,"a":1})"}},
      {R"({"oneOf":[{"required":["y"]},{"required":["x"]}],"properties":{"x":{},"y":{}}})",
       {R"({"x":1})", R"({"y":1,"z":1})"},
       {R"({"x":1,"y":1})", "{}"}},
  });
}

TEST(JsonSchema, CountsMembers) {
  check_schemas({
      {R"({"properties":{"a":{},"b":{},"c":{}},"required":["b"],"minProperties":2,"maxProperties":3,
           "additionalProperties":{"type":"null"}})",
       {R"({"a":1,"b":1})", R"({"b":1,"x":null})", R"({"b":1,"c":1,"x":null})",
        R"({"b":1,"x":null,"y":null})"},
       {R"({"b":1})", R"({"a":1,"b":1,"c":1,"x":null})", R"({"a":1,"c":1})"}},
      {R"({"maxProperties":0,"type":"object"})", {"{}", "{ }"}, {R"({"a":1})"}},
  });
}

TEST(JsonSchema, CombinesSchemas) {
  check_schemas({
      {R"({"properties":{"a":{"minimum":2}},"allOf":[{"additionalProperties":{"maximum":4}}],
           "type":"object"})",
       {R"({"a":3,"b":-1})", R"({"a":"x"})"},
       {R"({"a":1})", R"({"a":5})", R"({"b":5})"}},
      {R"({"properties":{"kind":{"enum":["a","b"]},"x":{}},"required":["kind"],"type":"object",
           "if":{"properties":{"kind":{"const":"a"}}},"then":{"required":["x"]},
           "else":{"properties":{"x":false}}})",
       {R"({"kind":"a","x":1})", R"({"kind":"b"})"},
       {R"({"kind":"a"})", R"({"kind":"b","x":1})", R"({"kind":"c"})"}},
      {R"({"not":{"type":"string","pattern":"^a"}})", {R"("ba")", "1", "{}"}, {R"("ab")"}},
      {R"({"type":"number","not":{"type":"integer"},"minimum":0,"maximum":3})",
       {"0.5", "2.50"},
       {"1", "2.0", "3.5"}},
      {R"({"type":"string","oneOf":[{"minLength":2},{"maxLength":3}]})",
       {R"("a")", R"("abcd")"},
       {R"("ab")", R"("abc")"}},
      {R"({"dependentRequired":{"a":["b"]},"properties":{"a":{},"b":{}}})",
       {R"({"a":1,"b":1})", R"({"b":1})", "{}"},
       {R"({"a":1})"}},
      {R"({"enum":[{"b":1,"a":[2]},"x",3.0],"properties":{"a":{}},"type":["object","integer"]})",
       {R"({"a":[ 2 ], "b":1})", "3", "3.0"},
       {R"({"b":1,"a":[2]})", R"("x")", R"({"a":[2]})"}},
  });
}

TEST(JsonSchema, ReferencesMayLeadBack) {
  check_schemas({
      {R"({"$ref":"#/$defs/list","$defs":{"list":{"anyOf":[{"type":"null"},
           {"type":"array","prefixItems":[{"type":"integer"},{"$ref":"#/$defs/list"}],"items":false,
            "minItems":2}]}}})",
       {"null", "[1,null]", "[1,[2,null]]"},
       {"[1]", "[1,[2]]", "[[1],null]"}},
      // The merged schema of a member contains itself.
      {R"({"$ref":"#/$defs/a","$defs":{
           "a":{"type":"object","properties":{"x":{"allOf":[{"$ref":"#/$defs/a"},{"$ref":"#/$defs/b"}]}}},
           "b":{"properties":{"x":{"$ref":"#/$defs/b"},"y":{"type":"null"}}}}})",
       {R"({"x":{"x":{"x":{},"y":null}}})", R"({"y":1})"},
       {R"({"x":{"y":1}})", R"({"x":{"x":{"y":1}}})", R"({"x":1})"}},
      // A member that has no end is not allowed.
      {R"({"properties":{"a":{"$ref":"#/$defs/a"},"b":{}},"type":"object",
           "$defs":{"a":{"type":"object","properties":{"a":{"$ref":"#/$defs/a"}},"required":["a"]}}})",
       {"{}", R"({"b":1})"},
       {R"({"a":{}})", R"({"a":1)"}},
      {R"({"$schema":"http://json-schema.org/draft-07/schema#","items":{"$ref":"#n","maximum":1},
           "definitions":{"n":{"$id":"#n","type":"integer"}}})",
       {"[5]"},
       {"[\"a\"]"}},
  });
}

TEST(JsonSchema, WritesStringsAndWhiteSpace) {
  check_schemas({{R"({"type":"array","items":{"maxLength":2,"type":"string"}})",
                  {"[]", "[\n]", "[\"\\ud83d\\ude00\\/\" , \"\xF0\x9F\x98\x80z\"]",
                   "[" + std::string(16, ' ') + "]"},
                  {R"(["abc"])", R"(["\ud83d"])", R"(["\ude00"])", "[\"\n\"]",
                   "[" + std::string(17, ' ') + "]", "[\"\xED\xA0\x80\"]"}},
                 {R"({"properties":{"a\"b":{"const":"x\ny"}}})",
                  {R"({"a\"b":"x\ny"})"},
                  {R"({"a\"b":"x\u0079"})", R"({"a\u0022b":1})"}}});
  const char* const kList = R"({"properties":{"a":{"type":"array"}}})";
  JsonSchemaOptions compact, pattern, strict;
  compact.disable_any_whitespace = true;
  pattern.whitespace_pattern = " ?";
  strict.disable_additional_properties = true;
  check_schemas({{kList, {R"({"a": [1, 2], "b": {}})", "{}"}, {R"({"a":[]})", "{ }"}}}, compact);
  check_schemas({{kList, {R"({"a":[1,2 ]})"}, {R"({"a":  []})", "{\n}"}}}, pattern);
  check_schemas({{kList, {R"({"a":[{"x":1}]})"}, {R"({"b":1})"}}, {"{}", {R"({"b":1})"}, {}}},
                strict);
}

TEST(JsonSchema, RefusesByName) {
  const std::vector<std::pair<const char*, const char*>> kRefused = {
      {R"({"properties":{"a/b":{"items":{"uniqueItems":true}}}})",
       "schema: #/properties/a~1b/items: uniqueItems is not supported"},
      {R"({"items":{"contains":{}}})", "schema: #/items: contains is not supported"},
      {R"({"unevaluatedProperties":false})", "schema: #: unevaluatedProperties is not supported"},
      {R"({"$dynamicRef":"#a"})", "schema: #: $dynamicRef is not supported"},
      {R"({"items":{"$ref":"other.json"}})", "schema: #/items: $ref \"other.json\" names another"},
      {R"({"$ref":"#/nowhere"})", "schema: #: $ref \"#/nowhere\" does not exist"},
      {R"({"items":{"format":"color"}})", "schema: #/items/format: the format \"color\""},
      {R"r({"items":{"pattern":"(?=a)"}})r", "schema: #/items/pattern: "},
      {R"({"not":{"multipleOf":3}})", "schema: #/not: multipleOf is not supported inside of not"},
      {R"({"type":"text"})", "schema: #: type \"text\" is no type of JSON"},
      {R"({"properties":{"a":3}})", "schema: #/properties/a: a schema is an object or a boolean"},
      {R"({"minLength":-1})", "schema: #: minLength must be a whole number"},
      {R"({"allOf":[{"$ref":"#"}]})", "schema: #: $ref leads back to itself"},
      {R"({"type":"string","enum":[1]})", "schema: the schema allows nothing"},
  };
  for (const auto& [spec, message] : kRefused)
    EXPECT_THAT(refusal(schema(Json::parse(spec))), StartsWith(message)) << spec;
  // They matter only where their type is possible.
  EXPECT_EQ(
      refusal(schema(Json::parse(R"({"type":"integer","uniqueItems":true,"format":"int32"})"))),
      "");
  EXPECT_EQ(refusal(schema(Json::parse(R"({"maxItems":1,"uniqueItems":true})"))), "");
}

/// A schema whose parts are made by a function of their number.
Json repeated_schema(const char* keyword, size_t num, const std::function<Json(size_t)>& part) {
  Json parts = Json::array();
  for (size_t i = 0; i < num; ++i) parts.push_back(part(i));
  Json spec = Json::object();
  spec[keyword] = std::move(parts);
  return spec;
}

TEST(JsonSchema, BoundsHostileSchemas) {
  const auto choice = [](size_t i) {
    return repeated_schema("anyOf", 3, [i](size_t j) {
      return Json{{"pattern", fmt::format("{}x{}", i, j)}};
    });
  };
  const auto member = [](size_t i) {
    return Json{{"required", Json(Strings{fmt::format("m{}", i)})}};
  };
  Json wide = Json::object(), chain = Json::object(), deep = Json::object();
  for (size_t i = 0; i < 6000; ++i) {
    wide["properties"][fmt::format("m{}", i)] = Json::object();
    chain["$defs"][fmt::format("d{}", i)]["$ref"] = fmt::format("#/$defs/d{}", i + 1);
  }
  chain["$ref"] = "#/$defs/d0";
  for (int i = 0; i < 250; ++i) {
    Json outer = Json::object();
    outer["items"] = std::move(deep);
    deep = std::move(outer);
  }
  const std::vector<std::pair<Json, const char*>> kHostile = {
      {repeated_schema("allOf", 14, choice), "more than 1000 combinations"},
      {repeated_schema("allOf", 5000, member), "more than 100000 steps"},
      {wide, "more than 5000 named members"},
      {chain, "more than 100 references"},
      {deep, "more than 200 levels"},
      {Json{{"const", std::string(size_t{2} << 20, 'a')}}, "at most 1048576 are supported"},
  };
  for (const auto& [spec, message] : kHostile)
    EXPECT_THAT(refusal(schema(spec)), HasSubstr(message));
}

class SchemaGoldens : public ::testing::TestWithParam<const char*> {};

TEST_P(SchemaGoldens, Rows) {
  const std::string path = kStructured + GetParam();
  if (!std::filesystem::exists(path)) GTEST_SKIP() << path << " is not here";
  for (const Json& row : read_json_lines(path)) {
    const std::string error = refusal(schema(row["spec"]));
    std::optional<Language> language;
    if (error.empty()) language.emplace(schema(row["spec"]));
    for (const Json& example : row["rows"]) {
      SCOPED_TRACE(fmt::format("{}: {} {}", row["id"].string(), example.dump(), error));
      const bool may_refuse = example.size() > 2 && example[size_t{2}] == "may_refuse";
      if (!language) EXPECT_TRUE(example.size() == 1 || may_refuse);
      else EXPECT_EQ(language->has(example[size_t{0}].string()), example[size_t{1}].get<bool>());
    }
  }
}

INSTANTIATE_TEST_SUITE_P(JsonSchema, SchemaGoldens,
                         ::testing::Values("json_schema.jsonl", "json_schema_suite.jsonl"));

}  // namespace

}  // namespace nanovllm::grammar
