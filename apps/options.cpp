#include "options.h"

#include <fmt/format.h>

#include <charconv>
#include <ranges>
#include <string>

namespace nanovllm {

CLI::Validator whole_number(int64_t least, uint64_t most) {
  const auto rewrite = [=](std::string& text) -> std::string {
    const auto read = [&](auto& number) {
      const char* const end = text.data() + text.size();
      const auto [stop, error] = std::from_chars(text.data(), end, number);
      return error == std::errc() && stop == end;
    };
    int64_t below_0 = 0;
    uint64_t number = 0;
    if (read(number) && number <= most) text = std::to_string(number);
    else if (read(below_0) && below_0 < 0 && below_0 >= least) text = std::to_string(below_0);
    else return fmt::format("'{}' is not a whole number of at most {}", text, most);
    return {};
  };
  return {rewrite, ""};
}

namespace {

void add_field(CLI::App& app, const FieldInfo& field, bool& value, const char* group) {
  const auto flip = [&value, opposite = !value] { value = opposite; };
  app.add_flag_callback(std::string(field.flag()), flip, field.help)->group(group);
}
template <class T>
void add_field(CLI::App& app, const FieldInfo& field, T& value, const char* group) {
  CLI::Option* const option = add_value(app, std::string(field.flag()), value, field.help);
  option->group(group)->type_name(std::string(field.value_name()));
  // Lists, and options that are off unless given, have no default to show.
  constexpr bool kIsOptional = requires { value.reset(); };
  constexpr bool kIsList = std::ranges::range<T> && !std::same_as<T, std::string>;
  if constexpr (kIsOptional || kIsList) option->allow_extra_args(false);
  else option->capture_default_str();
}
// No field of these kinds has an option.
void add_field(CLI::App&, const FieldInfo&, std::map<int32_t, double>&, const char*) {}
void add_field(CLI::App&, const FieldInfo&, std::optional<std::vector<int32_t>>&, const char*) {}

template <class Struct>
void add_fields(CLI::App& app, Struct& values, const char* group) {
  Struct::for_each_field([&](const FieldInfo& field, auto member) {
    if (!field.option.empty()) add_field(app, field, values.*member, group);
  });
}

}  // namespace

void add_model_argument(CLI::App& app, std::string& model) {
  app.add_option("MODEL", model, "Checkpoint folder in Hugging Face layout")
      ->required()
      ->type_name("FOLDER");
}

void add_engine_options(CLI::App& app, EngineConfig& config) {
  add_fields(app, config, "Engine options");
}

void add_sampling_options(CLI::App& app, SamplingParams& params) {
  add_fields(app, params, "Sampling options");
}

}  // namespace nanovllm
