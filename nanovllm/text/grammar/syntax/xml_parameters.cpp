#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <initializer_list>
#include <utility>

#include "nanovllm/base/check.h"
#include "nanovllm/text/grammar/language/code_points.h"
#include "nanovllm/text/grammar/regex/formats.h"
#include "nanovllm/text/grammar/regex/regex.h"
#include "nanovllm/text/grammar/syntax/structural_tag.h"

namespace nanovllm::grammar {

namespace {

/// begin NAME name_end [white space] text_begin|json_begin VALUE end
struct XmlStyle {
  std::string_view name, begin, name_end;
  bool may_have_space;
  std::string_view text_begin, json_begin, end;
};

constexpr std::array<XmlStyle, 5> kXmlStyles{{
    {"qwen_xml", "<parameter=", ">", false, "", "", "</parameter>"},
    {"minimax_xml", "<parameter name=\"", "\">", false, "", "", "</parameter>"},
    {"glm_xml", "<arg_key>", "</arg_key>", true, "<arg_value>", "<arg_value>", "</arg_value>"},
    {"deepseek_xml", "<｜DSML｜parameter name=\"", "\" string=\"", false, "true\">", "false\">",
     "</｜DSML｜parameter>"},
    {"deepseek_v4_1_xml", "<｜DSML｜ parameter name=\"", "\" string=\"", false, "true\">",
     "false\">", "</｜DSML｜ parameter>"},
}};

class XmlParameters {
 public:
  XmlParameters(Expressions& e, const XmlStyle& style, const Json& schema,
                const JsonSchemaOptions& options, const std::string& where)
      : e_(e),
        style_(style),
        schema_(schema),
        options_(options),
        where_(where),
        space_(parse_regex(e, "[ \\t\\r\\n]{0,16}", {}, where)) {
    // Refuses what is no schema, so that the keywords below have their types.
    parse_json_schema(e, schema, options, where);
    value_["$ref"] = "#/$defs/-value-";
    for (const char* key : {"$defs", "definitions"})
      if (schema.contains(key)) value_[key] = schema[key];
  }

  Expr parameters() {
    const Json anything = Json::object();
    const Json& object = schema_.contains("$ref")                      ? target(schema_)
                         : schema_.is_boolean() && schema_.get<bool>() ? anything
                                                                       : schema_;
    allow_only(object, {"type", "properties", "required", "additionalProperties", "$ref"});
    if (object.contains("type") && object["type"] != "object") error("it must allow objects");
    const Json &required = object["required"], &rest = object["additionalProperties"];
    Expr all = space_;
    std::vector<std::string> names;
    const auto add = [&](const std::string& name, const Json& schema, bool optional) {
      const Expr one = e_.sequence(parameter(e_.text(name), schema), space_);
      all = e_.sequence(all, optional ? e_.optional(one) : one);
      names.push_back(name);
    };
    for (const auto& [name, schema] : object["properties"].items())
      add(name, schema, std::ranges::find(required, Json(name)) == required.end());
    for (const Json& name : required)
      if (std::ranges::find(names, name.string()) == names.end()) add(name.string(), rest, false);
    if (rest.is_boolean() ? !rest.get<bool>()
                          : rest.is_null() && options_.disable_additional_properties)
      return all;
    const Expr other =
        e_.both(parse_regex(e_, "[^\\s<>\"=]+", {}, where_), e_.complement(e_.texts(names)));
    return e_.sequence(all, e_.repeat(e_.sequence(parameter(other, rest), space_), 0));
  }

 private:
  /// The values that a schema allows, as text and as JSON.
  struct Values {
    std::vector<Expr> texts, json;
  };

  Expr parameter(Expr name, const Json& schema) {
    Values values;
    add_values(values, schema, 0);
    const auto spaced = [&](std::string_view begin, const std::vector<Expr>& any) {
      return e_.sequence({e_.text(begin), space_, e_.any_of(any), space_});
    };
    return e_.sequence({e_.text(style_.begin), name, e_.text(style_.name_end),
                        style_.may_have_space ? space_ : Expr::kEmpty,
                        e_.any_of({spaced(style_.text_begin, values.texts),
                                   spaced(style_.json_begin, values.json)}),
                        e_.text(style_.end)});
  }

  void add_values(Values& values, const Json& schema, int depth) {
    if (depth > 20) error("'$ref' and 'anyOf' are nested more than 20 times");
    if (schema.contains("$ref")) {
      allow_only(schema, {"$ref"});
      return add_values(values, target(schema), depth + 1);
    }
    for (const char* key : {"anyOf", "oneOf"}) {
      if (!schema.contains(key)) continue;
      allow_only(schema, {key});
      for (const Json& alternative : schema[key]) add_values(values, alternative, depth + 1);
      return;
    }
    Json types = schema.is_object() ? schema["type"] : Json();
    if (types.is_null())
      types = {"string", "number", "integer", "boolean", "null", "object", "array"};
    if (types.is_string()) types = Json::array({types});
    const auto string = std::ranges::find(types, Json("string"));
    const bool has_string = string != types.end();
    if (has_string) types.erase(string);

    if (schema.contains("enum") || schema.contains("const")) {
      allow_only(schema, {"type", "enum", "const"});
      Json others = Json::array();
      for (const Json& choice :
           schema.contains("enum") ? schema["enum"] : Json::array({schema["const"]})) {
        if (!choice.is_string()) others.push_back(choice);
        else if (has_string) values.texts.push_back(e_.text(choice.string()));
      }
      if (!others.empty()) values.json.push_back(json({{"enum", std::move(others)}}));
      return;
    }
    if (schema.is_boolean() && !schema.get<bool>()) return;
    if (has_string) values.texts.push_back(text(schema));
    if (types.empty()) return;
    Json other = schema.is_object() ? schema : Json::object();
    other["type"] = std::move(types);
    values.json.push_back(json(other));
  }

  /// A string without quotes. It cannot contain the parameter's end, which ends it.
  Expr text(const Json& schema) {
    for (const char* key : {"allOf", "not", "if"})
      if (schema.contains(key)) error(fmt::format("'{}' of a string is not supported", key));
    const auto length = [&](const char* key, uint32_t absent) {
      const bool given = schema.contains(key) && schema[key].is_number_unsigned();
      return given ? schema[key].get<uint32_t>() : absent;
    };
    Expr text = e_.both(e_.repeat(character(e_, CodePoints::all(), Coding::kUtf8),
                                  length("minLength", 0), length("maxLength", kUnlimited)),
                        e_.complement(e_.sequence({Expr::kAny, e_.text(style_.end), Expr::kAny})));
    if (schema.contains("pattern"))
      text = e_.both(text, parse_regex(e_, schema["pattern"].string(), {.anywhere = true}, where_));
    if (!schema.contains("format")) return text;
    const auto known = format(e_, schema["format"].string(), Coding::kUtf8);
    if (!known) error(fmt::format("the format {} is not supported", printable(schema["format"])));
    return e_.both(text, *known);
  }

  /// The JSON texts of a part of the schema, whose references stay valid.
  Expr json(const Json& part) {
    value_["$defs"]["-value-"] = part;
    return parse_json_schema(e_, value_, options_, where_);
  }

  const Json& target(const Json& schema) const {
    const std::string path = schema["$ref"].is_string() ? schema["$ref"].string() : "";
    for (const std::string key : {"$defs", "definitions"}) {
      const size_t begin = key.size() + 3;
      if (path.starts_with("#/" + key + "/") && schema_[key].contains(path.substr(begin)))
        return schema_[key][path.substr(begin)];
    }
    error(fmt::format("'$ref' is {}, which is not found", printable(schema["$ref"])));
  }

  void allow_only(const Json& schema, std::initializer_list<std::string_view> keys) const {
    static constexpr std::array<std::string_view, 9> kAnnotations{
        "title", "description", "default",  "examples",  "$schema",
        "$defs", "definitions", "$comment", "deprecated"};
    if (!schema.is_object()) error(fmt::format("{} is not a schema here", printable(schema)));
    for (const auto& [key, value] : schema.items())
      if (std::ranges::find(keys, key) == keys.end() &&
          std::ranges::find(kAnnotations, key) == kAnnotations.end())
        error(fmt::format("{} is not supported in this style", printable(Json(key))));
  }
  [[noreturn]] void error(const std::string& what) const { fail("{}: {}", where_, what); }

  Expressions& e_;
  const XmlStyle& style_;
  const Json& schema_;
  const JsonSchemaOptions& options_;
  const std::string& where_;
  const Expr space_;
  Json value_;  ///< a schema whose definition "-value-" is a part of schema_
};

}  // namespace

Expr parse_xml_parameters(Expressions& e, const Json& schema, const std::string& style,
                          const JsonSchemaOptions& options, const std::string& where) {
  const auto found = std::ranges::find(kXmlStyles, style, &XmlStyle::name);
  require(found != kXmlStyles.end(), "{}: the style {} is not supported", where,
          printable(Json(style)));
  return XmlParameters(e, *found, schema, options, where).parameters();
}

}  // namespace nanovllm::grammar
