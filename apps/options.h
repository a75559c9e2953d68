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

void add_model_argument(CLI::App& app, std::string& model);
/// These add an option for each field of `config` or `params` that has one in config.h.
void add_engine_options(CLI::App& app, EngineConfig& config);
void add_sampling_options(CLI::App& app, SamplingParams& params);

/// Accepts only decimal numbers in a range. CLI11's own conversion turns a number that is too large
/// into the largest one of the type, and reads 010 as 8.
CLI::Validator whole_number(int64_t least, uint64_t most);

/// Makes the option accept the numbers of its type. A negative seed wraps around, as in JSON.
template <class T>
void check_number(CLI::Option& option, const T&) {
  if constexpr (std::same_as<T, uint64_t>)
    option.transform(
        whole_number(std::numeric_limits<int64_t>::min(), std::numeric_limits<uint64_t>::max()));
  else if constexpr (std::signed_integral<T>)
    option.transform(whole_number(std::numeric_limits<T>::min(), std::numeric_limits<T>::max()));
}
template <class T>
void check_number(CLI::Option& option, const std::optional<T>&) {
  check_number(option, T());
}
template <class T>
void check_number(CLI::Option& option, const std::vector<T>&) {
  check_number(option, T());
}

/// Adds an option that sets `value`. Every option with a number must be added by this function.
template <class T>
CLI::Option* add_value(CLI::App& app, const std::string& names, T& value, const char* text) {
  CLI::Option* const option = app.add_option(names, value, text);
  check_number(*option, value);
  return option;
}

}  // namespace nanovllm
