#include "apps/cli/options.h"

#include <concepts>
#include <map>
#include <optional>
#include <ranges>
#include <string>
#include <vector>

#include "nanovllm/base/config.h"
#include "nanovllm/params/generation_config.h"

namespace nanovllm {

namespace {

/// Replaces vLLM's words for a value that is chosen at the start.
std::string auto_to_0(std::string& text) {
  if (text == "auto" || text == "-1") text = "0";
  return {};
}

template <class T>
Option add_option(Command command, const FieldInfo& field, T& value) {
  const std::string names(field.flags());
  if constexpr (std::same_as<T, int64_t>)
    if (field.in_bytes) return command.add_bytes(names, value, field.help);
  return command.add_value(names, value, field.help);
}

void add_field(Command command, const FieldInfo& field, bool& value, const char* group) {
  const auto flip = [&value, opposite = !value] { value = opposite; };
  command.add_flag(std::string(field.flags()), flip, field.help).group(group);
}
template <class T>
void add_field(Command command, const FieldInfo& field, T& value, const char* group) {
  constexpr bool kIsList = std::ranges::range<T> && !std::same_as<T, std::string>;
  constexpr bool kIsOptional = requires { value.reset(); };
  Option option = add_option(command, field, value).group(group).type_name(field.value_name());
  if (field.takes_auto) option.transform(auto_to_0);
  if constexpr (std::same_as<T, std::vector<std::string>>) option.check(utf8_text());
  if constexpr (std::same_as<T, std::string>)
    if (field.allowed.choices[0] == nullptr) option.check(not_empty());
  // Lists, and options that are off unless given, have no default to show.
  if constexpr (!kIsOptional && !kIsList) option.show_default();
}
// No field of one of these types has an option.
void add_field(Command, const FieldInfo&, std::map<int32_t, double>&, const char*) {}
void add_field(Command, const FieldInfo&, std::optional<std::vector<int32_t>>&, const char*) {}
void add_field(Command, const FieldInfo&, std::optional<StructuredOutputs>&, const char*) {}

template <class Struct>
void add_fields(Command command, Struct& values, const char* group) {
  Struct::for_each_field([&](const FieldInfo& field, auto member) {
    if (!field.option.empty()) add_field(command, field, values.*member, group);
  });
}

}  // namespace

void add_engine_options(Command command, EngineConfig& config) {
  add_fields(command, config, "Engine options");
}

void add_sampling_options(Command command, SamplingParams& params) {
  add_fields(command, params, "Sampling options");
}

void add_generation_config(Command command, GenerationConfig& config) {
  command
      .add_value("--generation-config", config.source,
                 "auto: use the checkpoint's sampling values; vllm: ignore them; or the folder of "
                 "a generation_config.json")
      .type_name("FOLDER")
      .check(not_empty())
      .show_default();
  command
      .add_value("--override-generation-config", config.overrides,
                 "A JSON object of sampling values in place of those, such as "
                 "{\"temperature\": 0.6}")
      .type_name("JSON")
      .check(utf8_text());
}

}  // namespace nanovllm
