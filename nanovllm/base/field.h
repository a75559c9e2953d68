#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>

namespace nanovllm {

/// The allowed values of a field: the range of a number (or of each number in a map), or the
/// choices for a text.
struct Allowed {
  double least = -std::numeric_limits<double>::infinity();
  double most = std::numeric_limits<double>::infinity();
  bool excludes_least = false;
  int64_t multiple_of = 1;
  std::array<const char*, 4> choices = {};  ///< empty: any text
  /// Further choices that scripts for vLLM may give. No help and no message offers them.
  std::array<const char*, 7> other_choices = {};

  /// The allowed numbers, for a message about the wrong number x: "from 1 to 128".
  std::string range(double x) const;
};

constexpr Allowed at_least(double least) { return {.least = least}; }
constexpr Allowed between(double least, double most) { return {.least = least, .most = most}; }
constexpr Allowed above(double least, double most = std::numeric_limits<double>::infinity()) {
  return {.least = least, .most = most, .excludes_least = true};
}
template <class... Texts>
constexpr Allowed one_of(Texts... choices) {
  return {.choices = {choices...}};
}

/// The description of a field of SamplingParams or EngineConfig. The type and the default are those
/// of the struct's member. Validation, JSON, the command line with its help, Python and the
/// arguments of worker processes are loops over these descriptions (for_each_field() in config.h),
/// so none of them can omit a field that is described.
struct FieldInfo {
  const char* name;  ///< the name in C++, JSON and Python
  /// The option "--flag VALUE" or "-f,--flag VALUE" of the command line; empty if the field cannot
  /// be set there. The option of a bool has no value; it sets the opposite of the default. A field
  /// with choices has them as its VALUE.
  std::string_view option = {};
  const char* help = "";  ///< text in parentheses concerns only the command line
  Allowed allowed = {};
  /// The name of the field in a checkpoint's generation_config.json, whose value is then the
  /// default in a conversation; null if it has no name there.
  const char* generation_config = nullptr;
  int64_t none_means = 0;       ///< the value for JSON's null and Python's None; 0: the default
  bool takes_one_text = false;  ///< JSON and Python accept a single text instead of a list
  bool in_bytes = false;        ///< the command line accepts K, M, G and T, powers of 1,024
  bool takes_auto = false;      ///< the command line and Python accept auto and -1 for 0
  double typical = 0;           ///< a usual value; `bench sampling` measures its cost. 0: none

  /// All names of the option, "-f,--flag", and the long one.
  std::string_view flags() const { return option.substr(0, option.find(' ')); }
  std::string_view flag() const {
    return flags().substr(std::min(flags().find("--"), option.size()));
  }
  std::string value_name() const {
    std::string value(option.substr(std::min(flags().size() + 1, option.size())));
    for (const char* choice : allowed.choices)
      if (choice != nullptr) value += (value.empty() ? "" : "|") + std::string(choice);
    return value;
  }
};

}  // namespace nanovllm
