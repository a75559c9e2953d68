#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "nanovllm/text/jinja_value.h"

namespace nanovllm::jinja {

class Interpreter;

/// The arguments of a call, in the order in which they were written.
struct Args {
  Values positional;
  std::vector<std::pair<std::string, Value>> named;
};

/// Arguments matched to a builtin's parameters.
class Bound {
 public:
  Interpreter& interpreter;
  Budget& budget;
  Args rest;  ///< what "*" took

  Bound(const Builtin& builtin, Interpreter& interpreter, Budget& budget, Args args);

  const Value& operator[](size_t i) const { return values_[i]; }
  bool has(size_t i) const { return given_[i]; }
  /// Raises unless it is an integer (a text); the default where it was not given.
  int64_t integer(size_t i, int64_t otherwise = 0) const;
  const std::string& string(size_t i) const;
  bool flag(size_t i, bool otherwise = false) const {
    return has(i) ? truthy(values_[i]) : otherwise;
  }

 private:
  const Builtin& builtin_;
  Values values_;
  std::vector<bool> given_;
};

/// A function that the language brings. Parameters are names with a space between; "?" marks an
/// optional one and "*", at the end, takes all that is left.
struct Builtin {
  std::string_view name;
  std::string_view parameters;
  Value (*call)(Bound& args);
};

/// Null where there is none of that name.
const Builtin* find_filter(std::string_view name);
const Builtin* find_test(std::string_view name);
const Builtin* find_global(std::string_view name);
/// The method `name` of v's type; its first parameter is v.
const Builtin* find_method(const Value& v, std::string_view name);
/// A method that would change v, which the sandbox hides.
bool is_mutator(const Value& v, std::string_view name);

/// Python's int() of a text: an optional sign and prefix, "_" between digits. Empty where it is not
/// one.
std::optional<Int> parse_integer(std::string_view text, int base = 10);
std::optional<double> parse_float(std::string_view text);
/// The filters int, float, round and abs.
Value filter_int(Bound& args);
Value filter_float(Bound& args);
Value filter_round(Bound& args);
Value filter_abs(Bound& args);

/// fmt % args and fmt.format(args).
std::string format_percent(std::string_view format, const Args& args, Budget& budget);
std::string format_braces(std::string_view format, const Args& args, Budget& budget);

}  // namespace nanovllm::jinja
