#include "nanovllm/server/conversation/call_constraint.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <utility>

#include "nanovllm/server/conversation/calls/characters.h"
#include "nanovllm/server/http/api_error.h"

namespace nanovllm::server {

namespace {

/// The texts around the parts of calls in one form.
struct CallTexts {
  std::string trigger;            ///< with which each call begins; empty: with the function's
  std::string begin, after_name;  ///< around the function's name, before its arguments
  std::string end;                ///< of a call
  std::string separator;          ///< between two calls
  std::string first, last;        ///< around all calls
  const char* style = "json";     ///< of the arguments
  bool quotes_name = true;
};

CallTexts texts_of(const WrittenCalls& written) {
  switch (written.form) {
    case CallForm::kXml:
      return {.trigger = "<tool_call>",
              .begin = "<tool_call>\n<function=",
              .after_name = ">\n",
              .end = "</function>\n</tool_call>",
              .separator = "\n",
              .first = {},
              .last = {},
              .style = "qwen_xml",
              .quotes_name = false};
    case CallForm::kJson:
      return {.trigger = {},
              .begin = "{\"name\": ",
              .after_name = ", \"parameters\": ",
              .end = "}",
              .separator = "; ",
              .first = {},
              .last = {}};
    case CallForm::kMistral:
      if (written.names_first)
        return {.trigger = "[TOOL_CALLS]",
                .begin = "[TOOL_CALLS]",
                .after_name = "[ARGS]",
                .end = {},
                .separator = {},
                .first = {},
                .last = {},
                .quotes_name = false};
      return {.trigger = {},
              .begin = "{\"name\": ",
              .after_name = ", \"arguments\": ",
              .end = "}",
              .separator = ", ",
              .first = "[TOOL_CALLS] [",
              .last = "]"};
    case CallForm::kPythonic:
    case CallForm::kTags:
    case CallForm::kHermes:
      break;
  }
  return {.trigger = "<tool_call>",
          .begin = "<tool_call>\n{\"name\": ",
          .after_name = ", \"arguments\": ",
          .end = "}\n</tool_call>",
          .separator = "\n",
          .first = {},
          .last = {}};
}

// With one of these a schema may name more properties than its own.
constexpr const char* kOpenKeywords[] = {
    "additionalProperties", "patternProperties", "$ref", "allOf", "anyOf", "oneOf",
    "unevaluatedProperties"};

bool is_strict(const Json& tool) { return tool["function"]["strict"] == Json(true); }

std::vector<const Json*> callable(const Json& tools, const CallRules& rules) {
  std::vector<const Json*> found;
  for (const Json& tool : tools)
    if (std::ranges::count(rules.names, tool["function"]["name"].string()) > 0)
      found.push_back(&tool);
  return found;
}

/// The schema of a function's arguments, which are an object in every form. A function has no
/// parameters that its schema does not name, unless that says so.
Json schema_of_arguments(const Json& function) {
  Json schema = function["parameters"];
  if (schema.is_null()) schema = Json::object();
  const Json& type = std::as_const(schema)["type"];
  if (!schema.is_object() || !(type.is_null() || type == "object"))
    throw ApiError(400,
                   fmt::format("tools: the parameters of the function {} must be a schema of the "
                               "type \"object\", not {}",
                               printable(function["name"]), printable(schema)),
                   "tools");
  schema["type"] = "object";
  const auto is_there = [&](const char* keyword) { return schema.contains(keyword); };
  const auto is_named = [&](const Json& name) {
    return name.is_string() && schema["properties"].contains(name.string());
  };
  if (is_there("properties") && std::ranges::none_of(kOpenKeywords, is_there) &&
      std::ranges::all_of(std::as_const(schema)["required"], is_named))
    schema["additionalProperties"] = false;
  return schema;
}

Json tag_of(const Json& function, bool has_schema, const CallTexts& texts) {
  const Json& name = function["name"];
  if (!texts.quotes_name && !std::ranges::all_of(name.string(), is_in_name))
    throw ApiError(
        400,
        fmt::format("tools: the model cannot write the name of the function {}", printable(name)),
        "tools");
  // Templates write single spaces, and some models that are forced write more without an end.
  Json content = {
      {"type", "json_schema"},
      {"max_whitespace_cnt", 1},
      {"style", texts.style},
      {"json_schema", has_schema ? schema_of_arguments(function) : Json({{"type", "object"}})}};
  return {{"type", "tag"},
          {"begin",
           texts.begin + (texts.quotes_name ? dump_json(name) : name.string()) + texts.after_name},
          {"content", std::move(content)},
          {"end", texts.end}};
}

/// Calls, and nothing else.
Json only_calls(Json tags, bool several, const CallTexts& texts) {
  Json calls = {{"type", "tags_with_separator"},
                {"tags", std::move(tags)},
                {"separator", texts.separator},
                {"at_least_one", true},
                {"stop_after_first", !several}};
  if (texts.first.empty()) return calls;
  const auto text = [](const std::string& value) {
    return Json({{"type", "const_string"}, {"value", value}});
  };
  return {{"type", "sequence"},
          {"elements", Json::array({text(texts.first), std::move(calls), text(texts.last)})}};
}

/// Free text with calls. If all calls begin alike, this text begins one of the calls; otherwise
/// only what a function's calls begin with does, so that other objects stay free.
Json text_with_calls(Json tags, bool several, const CallTexts& texts) {
  Json triggers = Json::array();
  if (!texts.trigger.empty()) {
    triggers.push_back(texts.trigger);
  } else {
    for (const Json& tag : tags)
      if (std::ranges::find(triggers, tag["begin"]) == triggers.end())
        triggers.push_back(tag["begin"]);
  }
  return {{"type", "triggered_tags"},
          {"triggers", std::move(triggers)},
          {"tags", std::move(tags)},
          {"stop_after_first", !several}};
}

/// The form of an answer without calls, as a part of a structural tag.
Json format_of(const StructuredOutputs& answer) {
  if (answer.json)
    return {{"type", "json_schema"}, {"json_schema", parse_json(*answer.json, "the schema")}};
  if (answer.json_object) return {{"type", "json_schema"}, {"json_schema", {{"type", "object"}}}};
  if (answer.regex) return {{"type", "regex"}, {"pattern", *answer.regex}};
  if (answer.grammar) return {{"type", "grammar"}, {"grammar", *answer.grammar}};
  if (answer.structural_tag) {
    const Json tag = parse_json(*answer.structural_tag, "structural_tag");
    if (!tag["format"].is_null()) return tag["format"];
    Json triggered = {{"type", "triggered_tags"}, {"triggers", tag["triggers"]}};
    Json& tags = triggered["tags"] = Json::array();
    for (const Json& s : tag["structures"])
      tags.push_back({{"type", "tag"},
                      {"begin", s["begin"]},
                      {"content", {{"type", "json_schema"}, {"json_schema", s["schema"]}}},
                      {"end", s["end"]}});
    return triggered;
  }
  Json choices = Json::array();
  for (const std::string& text : answer.choice)
    choices.push_back({{"type", "const_string"}, {"value", text}});
  return {{"type", "or"}, {"elements", std::move(choices)}};
}

}  // namespace

std::optional<StructuredOutputs> constraint_of_calls(
    const WrittenCalls& written, const Json& tools, const CallRules& rules,
    const std::optional<StructuredOutputs>& answer) {
  const std::vector<const Json*> offered = callable(tools, rules);
  const bool any_strict =
      std::ranges::any_of(offered, [](const Json* tool) { return is_strict(*tool); });
  // What a model writes by itself is parsed anyway, and only its first call is delivered if it may
  // have one.
  if (!rules.must_call && !answer && (!any_strict || written.opening_is_special))
    return std::nullopt;
  if (written.form == CallForm::kPythonic) {
    if (!rules.must_call) return std::nullopt;
    throw ApiError(
        400,
        "tool_choice cannot force a call of a model that writes calls in Python; it must "
        "be \"none\" or \"auto\"",
        "tool_choice");
  }
  const CallTexts texts = texts_of(written);
  Json tags = Json::array();
  for (const Json* tool : offered)
    tags.push_back(tag_of((*tool)["function"], rules.must_call || is_strict(*tool), texts));
  const bool several = rules.parallel && written.takes_several;
  Json format = rules.must_call || answer ? only_calls(std::move(tags), several, texts)
                                          : text_with_calls(std::move(tags), several, texts);
  StructuredOutputs form;
  if (answer && !rules.must_call) {
    form.whitespace_pattern = answer->whitespace_pattern;
    form.disable_any_whitespace = answer->disable_any_whitespace;
    form.disable_additional_properties = answer->disable_additional_properties;
    format = {{"type", "or"}, {"elements", Json::array({format_of(*answer), std::move(format)})}};
  }
  form.structural_tag = dump_json({{"type", "structural_tag"}, {"format", std::move(format)}});
  return form;
}

std::optional<std::string> message_about_tools(std::string_view message, const Json& tools,
                                               const CallRules& rules) {
  constexpr std::string_view kTags = "/tags/", kSchema = "/content/json_schema";
  const size_t tag = message.find(kTags), schema = message.find(kSchema);
  if (schema == std::string_view::npos || tag > schema) return std::nullopt;
  size_t index = 0;
  std::from_chars(message.data() + tag + kTags.size(), message.data() + schema, index);
  const std::vector<const Json*> offered = callable(tools, rules);
  if (index >= offered.size()) return std::nullopt;
  std::string_view rest = message.substr(schema + kSchema.size());
  rest.remove_prefix(std::min(rest.find_first_not_of(": "), rest.size()));
  return fmt::format("tools: the parameters of the function {}: {}",
                     printable((*offered[index])["function"]["name"]), rest);
}

}  // namespace nanovllm::server
