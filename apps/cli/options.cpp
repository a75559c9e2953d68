#include "apps/cli/options.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <ranges>
#include <string>
#include <string_view>

#include "nanovllm/base/error.h"
#include "nanovllm/base/strings/suggestion.h"
#include "nanovllm/base/strings/utf8.h"

namespace nanovllm {

namespace {

/// Reads all of `text` as a number.
template <class Number>
std::errc read_all(std::string_view text, Number& number) {
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, number);
  return stop == end ? error : std::errc::invalid_argument;
}

/// What a unit such as "K", "MB" or "GiB" stands for; 0 if there is no such unit.
int64_t unit_bytes(std::string unit) {
  std::ranges::transform(unit, unit.begin(), [](unsigned char c) { return std::toupper(c); });
  int64_t bytes = 1;
  for (const std::string name : {"", "K", "M", "G", "T"}) {
    if (unit == name || unit == name + "B" || unit == name + "IB") return bytes;
    bytes *= 1024;
  }
  return 0;
}

}  // namespace

CLI::Validator whole_number(int64_t least, uint64_t most) {
  const auto rewrite = [=](std::string& text) -> std::string {
    int64_t below_0 = 0;
    uint64_t number = 0;
    const bool is_negative = text.starts_with('-');
    const std::errc error = is_negative ? read_all(text, below_0) : read_all(text, number);
    if (error == std::errc::invalid_argument)
      return fmt::format("'{}' is not a whole number", text);
    if (error != std::errc() || (is_negative ? below_0 < least : number > most))
      return fmt::format("{} is out of range; it must be from {} to {}", text, least, most);
    text = is_negative ? std::to_string(below_0) : std::to_string(number);
    return {};
  };
  return {rewrite, ""};
}

CLI::Validator decimal_number() {
  const auto check = [](std::string& text) -> std::string {
    double number = 0;
    const std::errc error = read_all(text, number);
    if (error == std::errc::result_out_of_range)
      return fmt::format("{} is out of range; it must be 0 or from 2.3e-308 to 1.8e308", text);
    if (error != std::errc() || !std::isfinite(number))
      return fmt::format("'{}' is not a number", text);
    return {};
  };
  return {check, ""};
}

CLI::Validator byte_size() {
  const auto rewrite = [](std::string& text) -> std::string {
    const size_t at = std::min(text.find_first_not_of("0123456789."), text.size());
    const std::string digits = text.substr(0, at);
    const int64_t unit = unit_bytes(text.substr(at));
    const bool is_fraction = digits.find('.') != std::string::npos;
    int64_t whole = 0, bytes = 0;
    double number = 0;
    const std::errc error = is_fraction ? read_all(digits, number) : read_all(digits, whole);
    if (error == std::errc::invalid_argument || unit == 0 || (is_fraction && unit == 1))
      return fmt::format("'{}' is not a number of bytes, such as 4294967296, 512M or 1.5G", text);
    number *= static_cast<double>(unit);
    if (error != std::errc() || __builtin_mul_overflow(whole, unit, &bytes) || number >= 0x1p63)
      return fmt::format("{} is out of range; it must be less than 8388608T", text);
    text = std::to_string(bytes + static_cast<int64_t>(number));
    return {};
  };
  return {rewrite, ""};
}

CLI::Validator utf8_text() {
  const auto check = [](const std::string& text) -> std::string {
    try {
      require_utf8(text, "");
    } catch (const UserError& e) {
      return e.what();
    }
    return {};
  };
  return {check, ""};
}

CLI::Validator not_empty() {
  return {[](const std::string& path) -> std::string {
            return path.empty() ? "the name is empty" : "";
          },
          ""};
}

namespace {

void add_field(CLI::App& app, const FieldInfo& field, bool& value, const char* group) {
  const auto flip = [&value, opposite = !value] { value = opposite; };
  app.add_flag_callback(std::string(field.flags()), flip, field.help)->group(group);
}
template <class T>
void add_field(CLI::App& app, const FieldInfo& field, T& value, const char* group) {
  constexpr bool kIsList = std::ranges::range<T> && !std::same_as<T, std::string>;
  constexpr bool kIsOptional = requires { value.reset(); };
  CLI::Option* option = nullptr;
  if (field.in_bytes)
    option = app.add_option(std::string(field.flags()), value, field.help)
                 ->transform(byte_size())
                 ->take_last();
  else option = add_value(app, std::string(field.flags()), value, field.help);
  option->group(group)->type_name(field.value_name());
  if constexpr (std::same_as<T, std::vector<std::string>>) option->check(utf8_text());
  if constexpr (std::same_as<T, std::string>)
    if (field.allowed.choices[0] == nullptr) option->check(not_empty());
  // Lists, and options that are off unless given, have no default to show.
  if constexpr (!kIsOptional && !kIsList) option->capture_default_str();
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

void add_engine_options(CLI::App& app, EngineConfig& config) {
  add_fields(app, config, "Engine options");
}

void add_sampling_options(CLI::App& app, SamplingParams& params) {
  add_fields(app, params, "Sampling options");
}

CLI::Option* add_choice(CLI::App& app, const std::string& names, std::string& value,
                        const char* choices, const char* text) {
  CLI::Option* const option = app.add_option(names, value, text);
  option->type_name(choices)->take_last()->capture_default_str();
  return option->check([known = choices_of(*option)](const std::string& given) -> std::string {
    if (std::ranges::count(known, given) > 0) return {};
    return fmt::format("'{}' must be one of {}{}", given, fmt::join(known, ", "),
                       did_you_mean(given, known));
  });
}

std::vector<std::string> choices_of(const CLI::Option& option) {
  std::vector<std::string> choices;
  const std::string names = option.get_type_name();
  for (const auto part : std::views::split(names, '|'))
    choices.emplace_back(part.begin(), part.end());
  const bool are_choices = choices.size() > 1 &&
                           std::ranges::none_of(names, [](char c) { return c >= 'A' && c <= 'Z'; });
  return are_choices ? choices : std::vector<std::string>();
}

}  // namespace nanovllm
