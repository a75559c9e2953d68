#include "nanovllm/text/grammar/syntax/structural_tag.h"

#include <fmt/format.h>
#include <gmock/gmock.h>

#include <string>
#include <vector>

#include "tests/text/grammar_language.h"
#include "tests/text/tokenizer_files.h"

namespace nanovllm::grammar {

namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;
using Texts = std::vector<std::string>;

std::function<Expr(Expressions&)> structural_tag(const Json& spec) {
  return [spec](Expressions& e) { return parse_structural_tag(e, spec, {}, "tag"); };
}
Json with_format(std::string_view format) {
  return {{"type", "structural_tag"}, {"format", Json::parse(format)}};
}

void check(std::string_view format, const Texts& accepted, const Texts& refused) {
  SCOPED_TRACE(format);
  Language language(structural_tag(with_format(format)));
  for (const std::string& text : accepted) EXPECT_TRUE(language.has(text)) << text;
  for (const std::string& text : refused) EXPECT_FALSE(language.has(text)) << text;
}

void check_refused(std::string_view format, const std::string& message) {
  const std::string error = refusal(structural_tag(with_format(format)));
  EXPECT_THAT(error, StartsWith("tag: ")) << format;
  EXPECT_THAT(error, HasSubstr(message)) << format;
}

TEST(StructuralTag, HasEachFormat) {
  check(R"({"type": "const_string", "value": "ab"})", {"ab"}, {"", "abc"});
  check(R"({"type": "const_string", "value": ""})", {""}, {"a"});
  check(R"({"type": "regex", "pattern": "[a-z]+"})", {"a"}, {"", "A"});
  check(R"({"type": "grammar", "grammar": "root ::= \"a\" root?"})", {"a", "aa"}, {""});
  check(R"({"type": "grammar", "grammar": "start: /a+/", "syntax": "lark"})", {"a"}, {""});
  check(R"({"type": "json_schema", "json_schema": {"type": "integer"}})", {"12"}, {"", "1.5"});
  check(R"({"type": "json_schema", "json_schema": {"type": "array", "items": {"type": "integer"}},
            "max_whitespace_cnt": 1})",
        {"[1, 2]", "[1,2]"}, {"[1,  2]"});
  check(R"({"type": "any_text"})", {"", "a\né"}, {"\xff"});
  check(R"({"type": "any_text", "excludes": ["ab", "c"], "max_chars": 3})", {"", "aéa", "ba"},
        {"ab", "c", "aaaa"});
  const std::string a = R"({"type": "const_string", "value": "a"})";
  check(R"({"type": "sequence", "elements": [)" + a + "," + a + "]}", {"aa"}, {"a", "aaa"});
  check(R"({"type": "or", "elements": [)" + a + R"(, {"type": "const_string", "value": "b"}]})",
        {"a", "b"}, {"", "ab"});
  check(R"({"type": "optional", "content": )" + a + "}", {"", "a"}, {"aa"});
  check(R"({"type": "plus", "content": )" + a + "}", {"a", "aa"}, {""});
  check(R"({"type": "star", "content": )" + a + "}", {"", "aa"}, {"b"});
  check(R"({"type": "repeat", "min": 1, "max": 2, "content": )" + a + "}", {"a", "aa"},
        {"", "aaa"});
  check(R"({"type": "repeat", "min": 2, "max": -1, "content": )" + a + "}", {"aa", "aaaa"}, {"a"});
}

TEST(StructuralTag, FreeTextStopsBeforeTheEndOfItsTag) {
  check(R"({"type": "tag", "begin": "<q>", "content": {"type": "any_text"}, "end": "</q>"})",
        {"<q></q>", "<q>a</</q>", "<q>é<q></q>"}, {"<q>", "<q>a</q>b</q>", "a</q>"});
  check(R"({"type": "tag", "begin": "", "content": {"type": "any_text"}, "end": ["b", "c"]})",
        {"ab", "ac"}, {"abc", "a"});
  check(R"({"type": "tag", "begin": "<r>", "content": {"type": "sequence", "elements": [
             {"type": "any_text"}, {"type": "const_string", "value": "!"}, {"type": "any_text"}]},
            "end": "</r>"})",
        {"<r>x!</r>", "<r>!y!z!</r>"}, {"<r></r>", "<r>!</r>y!</r>", "<r>x</r>!</r>"});
  check(R"({"type": "tag", "begin": "<r>", "content":
             {"type": "tag", "begin": "<q>", "content": {"type": "any_text"}, "end": "</q>"},
            "end": "</r>"})",
        {"<r><q>a</r>b</q></r>"}, {"<r><q>a</q>b</r>"});
  check(R"({"type": "tag", "begin": "<q>", "content": {"type": "const_string", "value": "1"},
            "end": ""})",
        {"<q>1"}, {"<q>"});
}

/// A tag <a>1</a> after the trigger <a, with more members.
std::string triggered(const std::string& members) {
  return R"({"type": "triggered_tags", "triggers": ["<a"], "tags": [{"type": "tag", "begin": "<a>",
             "content": {"type": "const_string", "value": "1"}, "end": "</a>"}])" +
         members + "}";
}

TEST(StructuralTag, TriggeredTags) {
  check(triggered(""), {"", "x", "x<", "<a>1</a>", "x<a>1</a>y<<a>1</a><a>1</a>z"},
        {"<a", "x<a>", "<a>2</a>", "<a>1</b>", "x<a>1</a>y<a", "\xff"});
  check(triggered(R"(, "at_least_one": true)"), {"<a>1</a>", "<a>1</a>x<a>1</a>y"},
        {"", "x", "x<a>1</a>", "<a>1</a><a"});
  check(triggered(R"(, "stop_after_first": true)"), {"", "x", "x<", "x<a>1</a>"},
        {"x<a>1</a>y", "<a>1</a><a>1</a>"});
  check(triggered(R"(, "stop_after_first": true, "at_least_one": true)"), {"<a>1</a>"},
        {"", "x<a>1</a>", "<a>1</a>y"});
  check(triggered(R"(, "excludes": ["y", "<b"])"), {"x<a>1</a>x<"}, {"y", "<b", "<a>1</a>y"});
  check(R"({"type": "tag", "begin": "<r>", "content": )" + triggered("") + R"(, "end": "</r>"})",
        {"<r></r>", "<r>x<a>1</a>y</r>", "<r></</r>"}, {"<r>x<a>1</a></r>y</r>", "<r>x</"});
  // The first complete trigger counts, even if a later one overlaps with it.
  check(R"({"type": "triggered_tags", "triggers": ["aa"], "tags": [{"type": "tag", "begin": "aab",
             "content": {"type": "const_string", "value": "1"}, "end": "c"}]})",
        {"aab1c", "a", "ba", "aab1ca"}, {"aaab1c", "aa"});
}

TEST(StructuralTag, TagsWithSeparator) {
  const auto tags = [](const std::string& members) {
    return R"({"type": "tags_with_separator", "tags": [{"type": "tag", "begin": "<a>",
               "content": {"type": "regex", "pattern": "[0-9]"}, "end": "</a>"}])" +
           members + "}";
  };
  check(tags(R"(, "separator": ",")"), {"", "<a>1</a>", "<a>1</a>,<a>2</a>,<a>3</a>"},
        {"<a>1</a>,", "<a>1</a><a>2</a>", "x"});
  check(tags(R"(, "separator": "")"), {"<a>1</a><a>2</a>"}, {"<a>1</a>,<a>2</a>"});
  check(tags(R"(, "separator": ",", "at_least_one": true)"), {"<a>1</a>", "<a>1</a>,<a>2</a>"},
        {""});
  check(tags(R"(, "separator": ",", "stop_after_first": true)"), {"", "<a>1</a>"},
        {"<a>1</a>,<a>2</a>"});
}

TEST(StructuralTag, Dispatch) {
  const auto dispatch = [](const std::string& members) {
    return R"({"type": "dispatch", "rules": [["<n>", {"type": "const_string", "value": "1"}],
               ["<m>", {"type": "any_text", "excludes": [" "]}]])" +
           members + "}";
  };
  check(dispatch(""), {"", "x", "x<n>1y<n>1", "<m>x y", "<n"}, {"<n>", "<n>2"});
  check(dispatch(R"(, "loop": false)"), {"", "x", "x<n>1", "<m>ab"}, {"x<n>1y", "<n>1<n>1"});
  check(dispatch(R"(, "excludes": ["y"])"), {"x<n>1x"}, {"y", "x<n>1y"});
}

TEST(StructuralTag, XmlParameters) {
  const auto style = [](const std::string& style, const std::string& schema) {
    return R"({"type": "json_schema", "style": ")" + style + R"(", "json_schema": )" + schema + "}";
  };
  const std::string schema = R"({"type": "object", "properties": {"a": {"type": "string"},
    "n": {"type": "integer"}, "o": {"type": "object"}, "e": {"enum": ["x", 1]}}, "required": ["a"],
    "additionalProperties": false})";
  check(style("qwen_xml", schema),
        {"<parameter=a>x</parameter>", "<parameter=a></parameter>",
         "\n<parameter=a>\n\"x\" </b></parameter>\n<parameter=n> 1\n</parameter>\n",
         "<parameter=a>x</parameter><parameter=o>{\"x\": \"</parameter>\"}</parameter>",
         "<parameter=a></param</parameter><parameter=e>x</parameter>",
         "<parameter=a>x</parameter><parameter=e> 1</parameter>"},
        {"", "<parameter=n>1</parameter>", "<parameter=a>x</parameter></parameter>",
         "<parameter=a>x</parameter><parameter=n>x</parameter>",
         "<parameter=n>1</parameter><parameter=a>x</parameter>",
         "<parameter=a>x</parameter><parameter=a>x</parameter>",
         "<parameter=a>x</parameter><parameter=e>\"x\"</parameter>",
         "<parameter=a>x</parameter><parameter=z>x</parameter>", "<parameter=a >x</parameter>"});
  check(style("minimax_xml", schema),
        {"<parameter name=\"a\">x</parameter>\n<parameter name=\"n\">1</parameter>"},
        {"<parameter=a>x</parameter>"});
  check(style("glm_xml", schema),
        {"<arg_key>a</arg_key>\n<arg_value>x</arg_value><arg_key>n</arg_key><arg_value>1</"
         "arg_value>"},
        {"<arg_key>n</arg_key><arg_value>1</arg_value>"});
  check(style("deepseek_xml", schema),
        {"<｜DSML｜parameter name=\"a\" string=\"true\">x</｜DSML｜parameter>\n"
         "<｜DSML｜parameter name=\"n\" string=\"false\">1</｜DSML｜parameter>"},
        {"<｜DSML｜parameter name=\"a\" string=\"false\">x</｜DSML｜parameter>",
         "<｜DSML｜parameter name=\"a\" string=\"true\">x</｜DSML｜parameter>"
         "<｜DSML｜parameter name=\"n\" string=\"true\">1</｜DSML｜parameter>"});
  check(style("qwen_xml", R"({"type": "object", "properties": {
          "a": {"type": "string", "minLength": 2, "maxLength": 3}, "b": {"$ref": "#/$defs/b"},
          "c": {"type": ["string", "null"], "pattern": "^[ab]+$"}, "d": {"const": "q r"},
          "f": {"type": "string", "format": "date"}},
          "$defs": {"b": {"anyOf": [{"type": "integer"}, {"type": "null"}]}}})"),
        {"", "<parameter=a>xx</parameter>", "<parameter=b>1</parameter>",
         "<parameter=b>null</parameter>", "<parameter=c>ab</parameter>",
         "<parameter=c>null</parameter>", "<parameter=d>q r</parameter>",
         "<parameter=f>2026-01-31</parameter>", "<parameter=z>x</parameter>"},
        {"<parameter=a>x</parameter>", "<parameter=a>xxxx</parameter>",
         "<parameter=b>x</parameter>", "<parameter=c>x</parameter>",
         "<parameter=d>\"q r\"</parameter>", "<parameter=f>x</parameter>"});
  check(R"({"type": "qwen_xml_parameter", "json_schema": true})",
        {"", "<parameter=a>x</parameter>"}, {"x"});
  check_refused(style("gemma", "{}"), "the style \"gemma\" is not supported");
  for (const char* wrong :
       {R"({"type": "string"})", R"({"type": "object", "properties": 1})", "1", "false",
        R"({"type": "object", "required": [1]})", R"({"$ref": "#/$defs/a"})",
        R"({"type": "object", "patternProperties": {"a": {}}})",
        R"({"type": "object", "properties": {"a": {"anyOf": 1}}})",
        R"({"type": "object", "properties": {"a": {"type": "string", "pattern": 1}}})",
        R"({"type": "object", "properties": {"a": {"type": "string", "minLength": "1"}}})",
        R"({"$defs": {"a": {"$ref": "#/$defs/a"}}, "properties": {"a": {"$ref": "#/$defs/a"}}})"})
    check_refused(style("qwen_xml", wrong), "/format/json_schema");
}

TEST(StructuralTag, OlderForm) {
  const Json spec = Json::parse(R"({"type": "structural_tag", "triggers": ["<f"], "structures": [
    {"begin": "<f=a>", "schema": {"type": "integer"}, "end": "</f>"},
    {"begin": "<f=b>", "schema": "{\"type\": \"null\"}", "end": "</f>"}]})");
  Language language(structural_tag(spec));
  for (const char* text : {"", "x", "<f=a>1</f>", "x<f=b>null</f><f=a>2</f>y"})
    EXPECT_TRUE(language.has(text)) << text;
  for (const char* text : {"<f", "<f=a>null</f>", "<f=c>1</f>"})
    EXPECT_FALSE(language.has(text)) << text;
}

TEST(StructuralTag, NamesWhatIsWrong) {
  const std::string a = R"({"type": "const_string", "value": "a"})";
  const std::string tag = R"({"type": "tag", "begin": "<a>", "content": )" + a + R"(, "end": "b"})";
  EXPECT_THAT(refusal(structural_tag(Json::parse("{}"))), HasSubstr("'format'"));
  EXPECT_THAT(refusal(structural_tag(Json::parse("[]"))), HasSubstr("'format'"));
  check_refused("1", "/format: it must be an object");
  check_refused("{}", "/format: 'type' is missing");
  check_refused(R"({"type": "nonsense"})", "/format: the type \"nonsense\" is not supported");
  for (const char* type :
       {"token", "exclude_token", "any_tokens", "token_triggered_tags", "token_dispatch"})
    check_refused(fmt::format(R"({{"type": "{}"}})", type), type);
  check_refused(R"({"type": "const_string", "value": 1})", "/format/value: it must be a string");
  check_refused(R"({"type": "sequence", "elements": []})", "/format/elements: it must be a list");
  check_refused(R"({"type": "or", "elements": []})", "/format/elements: it must be a list");
  check_refused(R"({"type": "sequence", "elements": [)" + a + R"(, {"type": "x"}]})",
                "/format/elements/1: the type");
  check_refused(R"({"type": "optional", "content": {"type": "x"}})", "/format/content: the type");
  check_refused(R"({"type": "repeat", "min": 2, "max": 1, "content": )" + a + "}", "less than");
  check_refused(R"({"type": "repeat", "min": -1, "max": 1, "content": )" + a + "}", "/format/min");
  check_refused(R"({"type": "regex", "pattern": "("})", "/format");
  check_refused(R"({"type": "grammar", "grammar": "root ::= x"})", "/format: line 1");
  check_refused(R"({"type": "grammar", "grammar": "", "syntax": "abnf"})", "the syntax \"abnf\"");
  check_refused(R"({"type": "json_schema", "json_schema": {"type": 1}})", "/format/json_schema");
  check_refused(R"({"type": "json_schema", "json_schema": {}, "any_order": true})", "any_order");
  check_refused(R"({"type": "json_schema", "json_schema": {}, "excludes": ["a"]})", "excludes");
  check_refused(R"({"type": "any_text", "max_tokens": 3})", "max_tokens");
  check_refused(R"({"type": "any_text", "excludes": [""]})", "/format/excludes");
  check_refused(R"({"type": "any_text", "excludes": "a"})", "/format/excludes");
  check_refused(R"({"type": "tag", "begin": "a", "content": )" + a + R"(, "end": []})", "'end'");
  check_refused(R"({"type": "tag", "begin": {"type": "token", "token": 1}, "content": )" + a +
                    R"(, "end": "a"})",
                "/format/begin: the type \"token\"");
  const auto tags = [&](const std::string& triggers, const std::string& tags) {
    return R"({"type": "triggered_tags", "triggers": )" + triggers + R"(, "tags": )" + tags + "}";
  };
  check_refused(tags(R"(["<a>"])", "[]"), "/format/tags: it must be a list");
  check_refused(tags(R"(["<b>"])", "[" + tag + "]"), "/format/tags/0: 'begin' must begin with");
  check_refused(tags(R"(["<a", "<a>"])", "[" + tag + "]"), "/format/tags/0: 'begin' must begin");
  check_refused(tags(R"([""])", "[" + tag + "]"), "/format/triggers");
  check_refused(tags(R"(["<a", "<b"])", "[" + tag + "]"), "no tag begins with the trigger \"<b\"");
  check_refused(R"({"type": "dispatch", "rules": []})", "/format/rules");
  check_refused(R"({"type": "dispatch", "rules": [["a"]]})", "/format/rules/0");
  check_refused(R"({"type": "dispatch", "rules": [["ab", )" + a + R"(], ["a", )" + a + "]]}",
                "the trigger \"ab\" begins with another one");
}

TEST(StructuralTag, AgreesWithGoldens) {
  const std::string path =
      std::string(NANOVLLM_SOURCE_DIR) + "/../shared/goldens/structured/structural_tag.jsonl";
  if (!std::filesystem::exists(path)) GTEST_SKIP() << path << " is not here";
  for (const Json& line : read_json_lines(path)) {
    const Json& spec = line["spec"];
    const Json parsed = spec.is_string() ? Json::parse(spec.string()) : spec;
    SCOPED_TRACE(parsed);
    if (line["rows"].front().size() == 1) {
      EXPECT_NE(refusal(structural_tag(parsed)), "");
      continue;
    }
    Language language(structural_tag(parsed));
    for (const Json& row : line["rows"])
      EXPECT_EQ(language.has(row[size_t{0}].string()), row[size_t{1}].get<bool>()) << row;
  }
}

}  // namespace

}  // namespace nanovllm::grammar
