#include "apps/chat/params.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>
#include <string_view>

#include "apps/cli/help.h"
#include "nanovllm/base/check.h"
#include "nanovllm/base/json.h"
#include "nanovllm/base/strings/suggestion.h"
#include "nanovllm/params/sampling_json.h"
#include "nanovllm/params/structured_json.h"

namespace nanovllm {

namespace {

template <class T>
Json to_json(const T& value) {
  return value;
}
template <class T>
Json to_json(const std::optional<T>& value) {
  return value ? to_json(*value) : Json();
}
Json to_json(const std::map<int32_t, double>& values) {
  Json json = Json::object();
  for (const auto& [id, value] : values) json[std::to_string(id)] = value;
  return json;
}

void require_known(const std::string& name) {
  std::vector<std::string> names;
  SamplingParams::for_each_field([&](const FieldInfo& field, auto) {
    if (is_for_chat(field)) names.emplace_back(field.name);
  });
  if (std::ranges::find(names, name) != names.end()) return;
  const std::string suggestion = did_you_mean(name, names);
  fail("'{}' is not a sampling parameter of a conversation{} /params lists them", name,
       suggestion.empty() ? ";" : suggestion);
}

}  // namespace

bool is_for_chat(const FieldInfo& field) {
  static constexpr std::array kOthers = {"n", "logprobs", "prompt_logprobs"};
  return std::ranges::find(kOthers, std::string_view(field.name)) == kOthers.end();
}

std::string describe(const SamplingParams& params, const std::string& name) {
  if (!name.empty()) require_known(name);
  std::string text;
  SamplingParams::for_each_field([&](const FieldInfo& field, auto member) {
    if (!is_for_chat(field) || !(name.empty() || name == field.name)) return;
    Json value = to_json(params.*member);
    if (value == field.none_means && field.none_means != 0) value = nullptr;
    // Text in parentheses concerns only the command line. The option of a bool, and so its help,
    // is about the opposite of the default.
    std::string help = field.help;
    help = help.substr(0, help.find(" ("));
    const bool is_opposite = to_json(SamplingParams().*member) == Json(true);
    const std::string entry = fmt::format("  {:<19} {:<6} ", field.name, dump_json(value));
    text += entry;
    wrap(text, entry.size(), entry.size(), (is_opposite ? "false: " : "") + help);
  });
  return text;
}

SamplingParams changed(const SamplingParams& params, const std::string& name,
                       const std::string& value) {
  require_known(name);
  Json json = value;
  try {
    json = parse_json(value, name);
  } catch (const UserError&) {  // not JSON, so it is a text
  }
  return sampling_params_from_json({{name, json}}, params, "/params");
}

}  // namespace nanovllm
