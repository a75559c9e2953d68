#pragma once

#include <CLI/CLI.hpp>
#include <concepts>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "nanovllm/base/config.h"

namespace nanovllm {

/// These add an option for each field of `config` or `params` that has one in config.h.
void add_engine_options(CLI::App& app, EngineConfig& config);
void add_sampling_options(CLI::App& app, SamplingParams& params);

/// What an option's value is checked with. CLI11's own conversions read '' as 0, a number that is
/// too large as the largest one, and 010 as 8.
CLI::Validator whole_number(int64_t least, uint64_t most);
CLI::Validator decimal_number();
/// A number of bytes, which may end with K, M, G or T, the powers of 1,024: 4G, 1.5GiB, 512m.
CLI::Validator byte_size();
/// A text, which must be UTF-8.
CLI::Validator utf8_text();
/// A path, which may have any bytes.
CLI::Validator not_empty();

/// Makes the option accept the values of its type. A negative seed wraps around, as in JSON.
template <class T>
void check_value(CLI::Option& option, const T&) {
  if constexpr (std::same_as<T, uint64_t>)
    option.transform(
        whole_number(std::numeric_limits<int64_t>::min(), std::numeric_limits<uint64_t>::max()));
  else if constexpr (std::signed_integral<T>)
    option.transform(whole_number(std::numeric_limits<T>::min(), std::numeric_limits<T>::max()));
  else if constexpr (std::floating_point<T>) option.check(decimal_number());
}
template <class T>
void check_value(CLI::Option& option, const std::optional<T>&) {
  check_value(option, T());
}
template <class T>
void check_value(CLI::Option& option, const std::vector<T>&) {
  check_value(option, T());
}

/// Adds an option that sets `value`. Every option with a number must be added by this function. If
/// the option is given several times, the last one counts, unless `value` is a list.
template <class T>
CLI::Option* add_value(CLI::App& app, const std::string& names, T& value, const char* text) {
  CLI::Option* const option = app.add_option(names, value, text);
  check_value(*option, value);
  if constexpr (requires { value.push_back(typename T::value_type()); } &&
                !std::same_as<T, std::string>)
    option->allow_extra_args(false);
  else option->take_last();
  return option;
}

/// Adds an option whose value is one of `choices`, separated by '|' as the help shows them.
CLI::Option* add_choice(CLI::App& app, const std::string& names, std::string& value,
                        const char* choices, const char* text);

/// The choices of an option: the values that its help lists, as in "--device auto|cpu|cuda". Empty
/// if its value is described by a name in capitals.
std::vector<std::string> choices_of(const CLI::Option& option);

}  // namespace nanovllm
