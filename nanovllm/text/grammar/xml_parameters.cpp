#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <initializer_list>
#include <utility>

#include "nanovllm/base/check.h"
#include "nanovllm/text/grammar/code_points.h"
#include "nanovllm/text/grammar/formats.h"
#include "nanovllm/text/grammar/regex.h"
#include "nanovllm/text/grammar/structural_tag.h"

namespace nanovllm::grammar {

namespace {

struct XmlStyle {
  std::string_view name;
  std::string_view begin, name_end;         ///< around the parameter's name
  bool space;                               ///< whether white space may follow
  std::string_view text_begin, json_begin;  ///< before a string and before another value
  std::string_view end;
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
      : e_(e), style_(style), schema_(schema), options_(options), where_(where) {
    space_ = parse_regex(e, "[ \\t\\r\\n]*", {}, where);
    value_["$ref"] = "#/$defs/-value-";
    for (const char* key : {"$defs", "definitions"})
      if (schema.contains(key)) value_[key] = schema[key];
  }

  Expr parameters() {
    const Json* object = &schema_;
    if (object->contains("$ref")) object = &target(*object);
    static const Json kAnyObject = Json::object();
    if (object->is_boolean() && object->get<bool>()) object = &kAnyObject;
    allow_only(*object, {"type", "properties", "required", "additionalProperties", "$ref"});
    if (const Json& type = (*object)["type"]; !type.is_null() && type != "object")
      error("the parameters of a call must be an object");
    const Json& rest = (*object)["additionalProperties"];
    const bool closed = rest.is_boolean()
                            ? !rest.get<bool>()
                            : rest.is_null() && options_.disable_additional_properties;
    const auto& required = (*object)["required"];
    std::vector<Expr> parts{space_};
    std::vector<std::string> names;
    const auto add = [&](const std::string& name, const Json& schema) {
      const Expr part = e_.sequence(parameter(e_.text(name), schema), space_);
      parts.push_back(
          std::ranges::find(required, Json(name)) != required.end() ? part : e_.optional(part));
      names.push_back(name);
    };
    for (const auto& [name, schema] : (*object)["properties"].items()) add(name, schema);
    for (const Json& name : required)
      if (std::ranges::find(names, name.string()) == names.end()) add(name.string(), rest);
    if (!closed) {
      Expr other = parse_regex(e_, "[^\\s<>\"=]+", {}, where_);
      if (!names.empty()) other = e_.both(other, e_.complement(e_.texts(names)));
      parts.push_back(e_.repeat(e_.sequence(parameter(other, rest), space_), 0));
    }
    Expr all = Expr::kEmpty;
    for (size_t i = parts.size(); i-- > 0;) all = e_.sequence(parts[i], all);
    return all;
  }

 private:
  /// The values that a schema allows, written as text and as JSON.
  struct Value {
    std::vector<Expr> texts, json;
  };

  Expr parameter(Expr name, const Json& schema) {
    Value value;
    add_values(value, schema, 0);
    const Expr begin = e_.sequence({e_.text(style_.begin), name, e_.text(style_.name_end),
                                    style_.space ? space_ : Expr::kEmpty});
    const Expr text = e_.sequence(e_.text(style_.text_begin), e_.any_of(value.texts));
    const Expr json =
        e_.sequence({e_.text(style_.json_begin), space_, e_.any_of(value.json), space_});
    return e_.sequence({begin, e_.any_of({text, json}), e_.text(style_.end)});
  }

  void add_values(Value& value, const Json& schema, int depth) {
    if (depth > 20) error("'$ref' and 'anyOf' are nested more than 20 times");
    if (schema.contains("$ref")) {
      allow_only(schema, {"$ref"});
      return add_values(value, target(schema), depth + 1);
    }
    for (const char* key : {"anyOf", "oneOf"}) {
      if (!schema.contains(key)) continue;
      allow_only(schema, {key});
      for (const Json& alternative : schema[key]) add_values(value, alternative, depth + 1);
      return;
    }
    static constexpr std::array<const char*, 6> kOthers{"number", "integer", "boolean",
                                                        "null",   "object",  "array"};
    Json types = schema.is_object() ? schema["type"] : Json();
    if (types.is_string()) types = Json::array({types});
    const bool any_type = types.is_null();
    if (any_type) types = Json(std::vector<std::string>(kOthers.begin(), kOthers.end()));
    const auto string = std::ranges::find(types, Json("string"));
    const bool has_string = any_type || string != types.end();
    if (string != types.end()) types.erase(string);

    if (schema.contains("enum") || schema.contains("const")) {
      allow_only(schema, {"type", "enum", "const"});
      Json others = Json::array();
      for (const Json& choice :
           schema.contains("enum") ? schema["enum"] : Json::array({schema["const"]})) {
        if (!choice.is_string()) others.push_back(choice);
        else if (has_string)
          value.texts.push_back(e_.sequence({space_, e_.text(choice.string()), space_}));
      }
      if (!others.empty()) value.json.push_back(json({{"enum", std::move(others)}}));
      return;
    }
    if (has_string && !(schema.is_boolean() && !schema.get<bool>()))
      value.texts.push_back(string_value(schema));
    if (types.empty()) return;
    Json other = schema.is_object() ? schema : Json::object();
    other["type"] = std::move(types);
    value.json.push_back(json(other));
  }

  /// A string without quotes. It ends at the parameter's end, so that it cannot contain that.
  Expr string_value(const Json& schema) {
    const auto length = [&](const char* key, uint32_t absent) {
      const Json& value = schema[key];
      return value.is_number_integer() && value >= 0 && value < kUnlimited ? value.get<uint32_t>()
                                                                           : absent;
    };
    const uint32_t min = length("minLength", 0), max = length("maxLength", kUnlimited);
    Expr text = e_.both(e_.repeat(character(e_, CodePoints::all(), Coding::kUtf8), min, max),
                        e_.complement(e_.sequence({Expr::kAny, e_.text(style_.end), Expr::kAny})));
    if (!schema.is_object()) return text;
    for (const char* key : {"allOf", "not", "if"})
      if (schema.contains(key)) error(fmt::format("'{}' of a string is not supported", key));
    if (schema["pattern"].is_string())
      text = e_.both(text, parse_regex(e_, schema["pattern"].string(), {.anywhere = true}, where_));
    if (schema["format"].is_string()) {
      const auto known = grammar::format(e_, schema["format"].string(), Coding::kUtf8);
      if (!known) error(fmt::format("the format {} is not supported", printable(schema["format"])));
      text = e_.both(text, *known);
    }
    return e_.sequence({space_, text, space_});
  }

  /// The JSON texts of a part of the schema, whose references stay valid.
  Expr json(const Json& part) {
    value_["$defs"]["-value-"] = part;
    return parse_json_schema(e_, value_, options_, where_);
  }

  const Json& target(const Json& schema) const {
    const Json& ref = schema["$ref"];
    const std::string path = ref.is_string() ? ref.string() : "";
    for (const char* key : {"$defs", "definitions"}) {
      const std::string folder = fmt::format("#/{}/", key);
      if (path.starts_with(folder) && schema_[key].contains(path.substr(folder.size())))
        return schema_[key][path.substr(folder.size())];
    }
    error(fmt::format("'$ref' is {}, which is not found", printable(ref)));
  }

  void allow_only(const Json& schema, std::initializer_list<std::string_view> keys) const {
    static constexpr std::array<std::string_view, 10> kAnnotations{
        "title", "description", "default",  "examples", "$schema",
        "$defs", "definitions", "$comment", "$id",      "deprecated"};
    if (!schema.is_object()) error(fmt::format("a schema cannot be {} here", printable(schema)));
    for (const auto& [key, value] : schema.items())
      if (std::ranges::find(keys, key) == keys.end() &&
          std::ranges::find(kAnnotations, key) == kAnnotations.end())
        error(fmt::format("'{}' is not supported in the style {}", key, style_.name));
  }
  [[noreturn]] void error(const std::string& what) const { fail("{}: {}", where_, what); }

  Expressions& e_;
  const XmlStyle& style_;
  const Json& schema_;
  const JsonSchemaOptions& options_;
  const std::string& where_;
  Expr space_ = Expr::kEmpty;
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
