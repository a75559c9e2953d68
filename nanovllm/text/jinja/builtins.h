#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "nanovllm/text/jinja/interpreter.h"

namespace nanovllm::jinja {

class Bound;

/// A function of the language: a filter, a test, a global function, or a method, whose kind is the
/// name of a type and whose first argument is its object. Kinds, names and parameters are separated
/// by spaces: {"filter str", "lower", "s", ...} is a filter and a method of str. "?" marks an
/// optional parameter; "*", at the end, takes all remaining arguments.
struct Builtin {
  std::string_view kinds;
  std::string_view names;
  std::string_view parameters;
  Value (*call)(Bound& args);
};

/// The arguments of a call, matched to a builtin's parameters.
class Bound {
 public:
  const Builtin& builtin;
  Interpreter& interpreter;
  Budget& budget;
  Args rest;  ///< what "*" took

  Bound(const Builtin& builtin, Interpreter& interpreter, Args args);

  /// Undefined where it is not given.
  const Value& operator[](size_t i) const { return values_[i]; }
  /// Whether it is given, and not None.
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

/// Null where there is none: find_builtin("filter", "upper"), find_builtin("dict", "items").
const Builtin* find_builtin(std::string_view kind, std::string_view name);

/// The function of all methods that would change their object, which the sandbox hides.
Value is_unsafe(Bound& args);

/// The parts of the table.
std::span<const Builtin> filters();
std::span<const Builtin> tests_and_globals();
std::span<const Builtin> methods();

/// format % args and format.format(args).
std::string format_percent(std::string_view format, const Args& args, Budget& budget);
std::string format_braces(std::string_view format, const Args& args, Budget& budget);

}  // namespace nanovllm::jinja
