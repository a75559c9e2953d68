#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <string_view>

namespace nanovllm {

/// What a field may hold: the range of a number, or of each number in a map; the choices of a text.
struct Allowed {
  double least = -std::numeric_limits<double>::infinity();
  double most = std::numeric_limits<double>::infinity();
  bool excludes_least = false;
  int64_t multiple_of = 1;
  std::array<const char*, 4> choices = {};  ///< none: any text
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

/// A field of SamplingParams or EngineConfig, without its type and its default, which the struct
/// has. Validation, JSON, the command line with its help, Python and the arguments of the worker
/// processes are loops over these (for_each_field() in config.h), so that none of them can forget a
/// field.
struct FieldInfo {
  const char* name;  ///< in C++, JSON and Python
  /// "--flag VALUE" on the command line; empty: it cannot be set there. The option of a bool has no
  /// value and sets the opposite of the default.
  std::string_view option = {};
  const char* help = "";
  Allowed allowed = {};
  /// Its name in a checkpoint's generation_config.json, whose value is then the default in a
  /// conversation; null: it has none there.
  const char* generation_config = nullptr;
  int64_t none_means = 0;       ///< what JSON's null and Python's None mean; 0: the default
  bool takes_one_text = false;  ///< in JSON and Python a text may stand for a list of one

  std::string_view flag() const { return option.substr(0, option.find(' ')); }
  std::string_view value_name() const {
    return option.substr(std::min(flag().size() + 1, option.size()));
  }
};

}  // namespace nanovllm
