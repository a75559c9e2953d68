#include "nanovllm/params/structured_json.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "nanovllm/base/check.h"
#include "nanovllm/base/strings/suggestion.h"

namespace nanovllm {

namespace {

constexpr std::string_view kStructuredOutputs = "structured_outputs";
constexpr std::string_view kResponseFormat = "response_format";

bool is_text(const Json& json) { return json.is_string(); }
bool is_flag(const Json& json) { return json.is_boolean(); }
bool is_document(const Json& json) { return json.is_string() || json.is_object(); }
bool is_list_of_texts(const Json& json) {
  return json.is_array() && !json.empty() && std::ranges::all_of(json, &Json::is_string);
}

struct Member {
  std::string_view name;
  bool is_form;  ///< of which there is one, while the others say more about it
  bool (*is_right)(const Json& value);
  const char* right;
};

constexpr const char* kRightText = "a text";
constexpr const char* kRightFlag = "true or false";
constexpr Member kMembers[] = {
    {"json", true, is_document, "a JSON Schema, as an object or as its text"},
    {"regex", true, is_text, kRightText},
    {"choice", true, is_list_of_texts, "a list of at least one text"},
    {"grammar", true, is_text, kRightText},
    {"json_object", true, is_flag, kRightFlag},
    {"structural_tag", true, is_document, "an object or its text"},
    {"whitespace_pattern", false, is_text, kRightText},
    {"disable_any_whitespace", false, is_flag, kRightFlag},
    {"disable_additional_properties", false, is_flag, kRightFlag},
};

// Members of vLLM's class that say how a grammar is computed.
constexpr std::string_view kWithoutEffect[] = {"backend", "_backend", "_backend_was_auto",
                                               "backend_was_auto", "disable_fallback"};

struct OtherName {
  std::string_view name, member;  // no member: without effect
  bool only_in_body;
};
constexpr OtherName kOtherNames[] = {
    {"guided_json", "json", false},
    {"guided_regex", "regex", false},
    {"guided_choice", "choice", false},
    {"guided_grammar", "grammar", false},
    {"guided_json_object", "json_object", false},
    {"guided_whitespace_pattern", "whitespace_pattern", false},
    {"guided_decoding_backend", "", false},
    {"json_schema", "json", true},
    {"regex", "regex", true},
    {"ebnf", "grammar", true},
    {"structural_tag", "structural_tag", true},
};

const Member* find_member(std::string_view name) {
  const auto* const found = std::ranges::find(kMembers, name, &Member::name);
  return found == std::end(kMembers) ? nullptr : found;
}

const OtherName* find_other(std::string_view name, bool in_body) {
  const auto* const found = std::ranges::find(kOtherNames, name, &OtherName::name);
  const bool is_known = found != std::end(kOtherNames) && (in_body || !found->only_in_body);
  return is_known ? found : nullptr;
}

/// The name of the form that an object gives; empty if it gives none.
std::string form_of(const Json& object) {
  for (const Member& member : kMembers) {
    const Json& value = std::as_const(object)[member.name];
    if (member.is_form && !value.is_null() && value != Json(false)) return std::string(member.name);
  }
  return {};
}

std::optional<std::string> text_of(const Json& value) {
  if (value.is_null()) return std::nullopt;
  return value.is_string() ? value.string() : dump_json(value);
}

/// OpenAI's response_format as structured_outputs. Other servers also take a schema for
/// json_object.
Json of_response_format(const Json& format) {
  const Json& type = format["type"];
  require(type.is_string(), "response_format must be an object with a type, not {}",
          printable(format));
  if (type == "text") return Json::object();
  if (type == "structural_tag") return Json::object({{"structural_tag", format}});
  if (type == "json_object" && format["schema"].is_null())
    return Json::object({{"json_object", true}});
  require(type == "json_object" || type == "json_schema",
          "response_format has the type {}; it must be text, json_object, json_schema or "
          "structural_tag",
          printable(type));
  const Json& schema = type == "json_object" ? format["schema"] : format["json_schema"]["schema"];
  require(schema.is_object(), "response_format: {} must be a JSON Schema, an object",
          type == "json_object" ? "schema" : "json_schema.schema");
  Json members = {{"json", schema}};
  // OpenAI takes only schemas with "additionalProperties": false here.
  if (format["json_schema"]["strict"] == Json(true))
    members["disable_additional_properties"] = true;
  return members;
}

/// What a field says about the form of the answer, as members of structured_outputs.
Json members_of(const std::string& name, const Json& value, bool in_body) {
  if (name == kResponseFormat) return of_response_format(value);
  if (name == kStructuredOutputs) return value;
  const Member* member = find_member(find_other(name, in_body)->member);
  if (member == nullptr) return Json::object();
  require(member->is_right(value), "{} must be {}", name, member->right);
  return Json::object({{member->name, value}});
}

}  // namespace

StructuredOutputs structured_outputs_from_json(const Json& json) {
  require(json.is_object(), "must be an object, not {}", printable(json));
  for (const auto& [name, value] : json.items()) {
    if (std::ranges::find(kWithoutEffect, name) != std::end(kWithoutEffect)) continue;
    const Member* member = find_member(name);
    std::vector<std::string> known;
    for (const Member& m : kMembers) known.emplace_back(m.name);
    require(member != nullptr, "has no member {}{}", printable(Json(name)),
            did_you_mean(name, known));
    require(value.is_null() || member->is_right(value), "has a wrong {}: it must be {}", name,
            member->right);
  }
  const auto flag = [&](std::string_view name) { return json[name] == Json(true); };
  StructuredOutputs form = {.json = text_of(json["json"]),
                            .regex = text_of(json["regex"]),
                            .grammar = text_of(json["grammar"]),
                            .json_object = flag("json_object"),
                            .structural_tag = text_of(json["structural_tag"]),
                            .whitespace_pattern = text_of(json["whitespace_pattern"]),
                            .disable_any_whitespace = flag("disable_any_whitespace"),
                            .disable_additional_properties = flag("disable_additional_properties")};
  for (const Json& choice : json["choice"]) form.choice.push_back(choice.string());
  return form;
}

Json to_json(const StructuredOutputs& form) {
  Json json = Json::object();
  const auto add = [&](const char* name, const std::optional<std::string>& text) {
    if (text) json[name] = *text;
  };
  add("json", form.json);
  add("regex", form.regex);
  if (!form.choice.empty()) json["choice"] = form.choice;
  add("grammar", form.grammar);
  if (form.json_object) json["json_object"] = true;
  add("structural_tag", form.structural_tag);
  add("whitespace_pattern", form.whitespace_pattern);
  if (form.disable_any_whitespace) json["disable_any_whitespace"] = true;
  if (form.disable_additional_properties) json["disable_additional_properties"] = true;
  return json;
}

bool is_form_field(std::string_view name, bool in_body) {
  return name == kStructuredOutputs || name == kResponseFormat ||
         find_other(name, in_body) != nullptr;
}

bool take_form(const std::string& name, const Json& value, bool in_body, Json& sampling) {
  if (!is_form_field(name, in_body)) return false;
  if (value.is_null()) return true;
  const Json members = members_of(name, value, in_body);
  if (members == Json::object() && name != kStructuredOutputs) return true;
  Json& form = sampling[kStructuredOutputs];
  if (!members.is_object() || !(form.is_null() || form.is_object())) {
    form = members;  // wrong, which reading it will say
    return true;
  }
  const std::string before = form_of(form);
  require(before.empty() || form_of(members).empty(),
          "{} gives a second form of the answer; another field has given {}", name, before);
  if (form.is_null()) form = Json::object();
  form.update(members);
  return true;
}

}  // namespace nanovllm
