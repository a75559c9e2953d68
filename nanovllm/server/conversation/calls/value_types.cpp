#include "nanovllm/server/conversation/calls/value_types.h"

#include <algorithm>
#include <charconv>
#include <optional>
#include <utility>

#include "nanovllm/base/error.h"
#include "nanovllm/server/conversation/calls/characters.h"
#include "nanovllm/server/conversation/calls/python_literal.h"
#include "nanovllm/server/http/json_text.h"

namespace nanovllm::server {

namespace {

constexpr int kMostSchemas = 100;

/// Names of JSON's types, and those that tools written in Python use.
constexpr std::pair<std::string_view, ValueTypes> kTypeNames[] = {
    {"string", kStringValue},   {"str", kStringValue},    {"integer", kIntegerValue},
    {"int", kIntegerValue},     {"number", kNumberValue}, {"float", kNumberValue},
    {"boolean", kBooleanValue}, {"bool", kBooleanValue},  {"null", kNullValue},
    {"object", kObjectValue},   {"dict", kObjectValue},   {"array", kArrayValue},
    {"list", kArrayValue}};

ValueTypes type_named(const Json& name) {
  if (!name.is_string()) return 0;
  for (const auto& [known, type] : kTypeNames)
    if (name == known) return type;
  return 0;
}

ValueTypes type_of(const Json& value) {
  switch (value.type()) {
    case Json::Type::kString:
      return kStringValue;
    case Json::Type::kInteger:
    case Json::Type::kUnsigned:
      return kIntegerValue;
    case Json::Type::kReal:
      return kNumberValue;
    case Json::Type::kBoolean:
      return kBooleanValue;
    case Json::Type::kNull:
      return kNullValue;
    case Json::Type::kObject:
      return kObjectValue;
    case Json::Type::kArray:
      return kArrayValue;
  }
  return 0;
}

/// The value that one part of a JSON pointer refers to, or null. The part is a key, in which "~1"
/// is a slash and "~0" a tilde, or the number of an element.
const Json* find_part(const Json& json, std::string_view part) {
  if (json.is_array()) {
    size_t index = 0;
    const auto [end, error] = std::from_chars(part.begin(), part.end(), index);
    const bool is_index = error == std::errc() && end == part.end() && index < json.size();
    return is_index ? &json[index] : nullptr;
  }
  std::string key;
  for (size_t i = 0; i < part.size(); ++i) {
    const bool is_escape = part[i] == '~' && i + 1 < part.size();
    key += !is_escape ? part[i] : part[++i] == '1' ? '/' : '~';
  }
  const auto member = json.find(key);
  return member == json.end() ? nullptr : &*member;
}

/// The value that a JSON pointer such as "#/$defs/Name" refers to, or null. Source: RFC 6901.
const Json* find_reference(const Json& reference, const Json& root) {
  if (!reference.is_string()) return nullptr;
  std::string_view text = reference.string();
  if (text != "#" && !text.starts_with("#/")) return nullptr;
  text.remove_prefix(1);
  const Json* at = &root;
  while (at != nullptr && !text.empty()) {
    const std::string_view part = text.substr(1, text.find('/', 1) - 1);
    text.remove_prefix(1 + part.size());
    at = find_part(*at, part);
  }
  return at;
}

ValueTypes collect(const Json& schema, const Json& root, int& schemas_left) {
  if (!schema.is_object() || --schemas_left < 0) return 0;
  ValueTypes types = 0;
  for (const auto& [key, value] : schema.items()) {
    if (key == "$ref") {
      if (const Json* target = find_reference(value, root))
        types |= collect(*target, root, schemas_left);
    } else if (key == "type") {
      types |= type_named(value);
      if (value.is_array())
        for (const Json& name : value) types |= type_named(name);
    } else if (key == "const") {
      types |= type_of(value);
    } else if (key == "enum" && value.is_array()) {
      for (const Json& one : value) types |= type_of(one);
    } else if ((key == "anyOf" || key == "oneOf" || key == "allOf") && value.is_array()) {
      for (const Json& one : value) types |= collect(one, root, schemas_left);
    } else if (key == "nullable" && value == true) {  // a keyword of OpenAPI
      types |= kNullValue;
    }
  }
  return types;
}

bool equals_in_any_case(std::string_view text, std::string_view lower) {
  return std::ranges::equal(text, lower, [](char a, char b) { return (a | 0x20) == b; });
}

std::string quoted(std::string_view text) {
  std::string json;
  append_json_string(json, text);
  return json;
}

std::optional<Json> parse(std::string_view text) {
  try {
    return parse_json(text, "value");
  } catch (const UserError&) {
    return std::nullopt;
  }
}

}  // namespace

ValueTypes types_of_schema(const Json& schema, const Json& root) {
  int schemas_left = kMostSchemas;
  return collect(schema, root, schemas_left);
}

std::string json_of_value(std::string_view text, ValueTypes types) {
  if ((types & ~kStringValue) == 0) return quoted(text);
  std::string_view value = text;
  value.remove_prefix(std::min(value.find_first_not_of(kSpaces), value.size()));
  value = value.substr(0, value.find_last_not_of(kSpaces) + 1);

  // Templates show True, False and None for values of earlier calls, so models write them too.
  const bool may_be_text = (types & kStringValue) != 0;
  if (equals_in_any_case(value, "null") && (!may_be_text || (types & kNullValue) != 0))
    return "null";
  if (value == "None" && !may_be_text) return "null";
  if ((types & kBooleanValue) != 0) {
    if (equals_in_any_case(value, "true")) return "true";
    if (equals_in_any_case(value, "false")) return "false";
  }
  const std::optional<Json> parsed = parse(value);
  const bool is_whole = parsed && parsed->is_number() &&
                        value.find_first_not_of("-0123456789") == std::string_view::npos;
  const bool is_meant =
      parsed && ((is_whole && (types & (kIntegerValue | kNumberValue)) != 0) ||
                 (parsed->is_number() && (types & kNumberValue) != 0) ||
                 (parsed->is_structured() && (types & (kObjectValue | kArrayValue)) != 0));
  if (is_meant) return std::string(value);
  if (!parsed && (types & (kObjectValue | kArrayValue)) != 0 &&
      (value.starts_with('{') || value.starts_with('[')))
    if (std::optional<std::string> json = json_of_python(value)) return *std::move(json);
  return quoted(text);
}

}  // namespace nanovllm::server
