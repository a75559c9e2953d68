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
/// The options of the fields of `config` and `params`, as config.h describes them.
void add_engine_options(CLI::App& app, EngineConfig& config);
void add_sampling_options(CLI::App& app, SamplingParams& params);

/// Takes decimal numbers in a range alone. CLI11's own conversion takes the largest number that its
/// type has for one that is larger, and 010 for 8.
CLI::Validator whole_number(int64_t least, uint64_t most);

/// The kind of number that an option of type T takes; a seed below 0 wraps, as it does in JSON.
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

/// Adds an option that sets `value`; every option with a number comes from here.
template <class T>
CLI::Option* add_value(CLI::App& app, const std::string& names, T& value, const char* text) {
  CLI::Option* const option = app.add_option(names, value, text);
  check_number(*option, value);
  return option;
}

}  // namespace nanovllm
