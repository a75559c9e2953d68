#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "nanovllm/text/jinja/interpreter.h"

namespace nanovllm::jinja {

class Bound;

/// A function that the language brings: a filter ("|"), a test ("is "), a global ("()") or a method
/// ("str.", "list.", "dict.", "loop."), whose first parameter is its object. Names and parameters
/// stand with a space between; "?" marks an optional parameter and "*", at the end, takes all that
/// is left.
struct Builtin {
  std::string_view kind;
  std::string_view names;
  std::string_view parameters;
  Value (*call)(Bound& args);
};

/// Arguments matched to a builtin's parameters.
class Bound {
 public:
  const Builtin& builtin;
  Interpreter& interpreter;
  Budget& budget;
  Args rest;  ///< what "*" took

  Bound(const Builtin& builtin, Interpreter& interpreter, Args args);

  const Value& operator[](size_t i) const { return values_[i]; }
  /// It is given, and not None.
  bool has(size_t i) const { return given_[i] && !values_[i].is_none(); }
  /// Raises unless it is an integer; the default where it was not given.
  int64_t integer(size_t i, int64_t otherwise = 0) const;
  /// Raises unless it is a text. Charged as if all of it were read.
  const std::string& string(size_t i) const;
  bool flag(size_t i) const { return given_[i] && truthy(values_[i]); }
  /// Whatever it is, as a text, charged likewise.
  std::string text(size_t i = 0) const;
  Values list(size_t i = 0) const { return to_list(values_[i], budget); }

 private:
  Values values_;
  std::vector<bool> given_;
};

/// Null where there is none: find_builtin("|", "upper").
const Builtin* find_builtin(std::string_view kind, std::string_view name);
/// The method `name` of v's type; is_unsafe for one that would change v, which the sandbox hides.
const Builtin* find_method(const Value& v, std::string_view name);

Value is_unsafe(Bound& args);

/// The table's parts.
std::span<const Builtin> filters();
std::span<const Builtin> tests_and_globals();
std::span<const Builtin> methods();

/// fmt % args and fmt.format(args).
std::string format_percent(std::string_view format, const Args& args, Budget& budget);
std::string format_braces(std::string_view format, const Args& args, Budget& budget);

}  // namespace nanovllm::jinja
