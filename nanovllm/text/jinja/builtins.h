#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "nanovllm/text/jinja/interpreter.h"

namespace nanovllm::jinja {

class Bound;

/// A function of the language: a filter, a test, a global function or a method. The kind of a
/// method is the name of a type, and its first argument is the object. Kinds, names and parameters
/// are separated by spaces: {"filter str", "lower", "s", ...} is a filter and a method of str. "?"
/// marks an optional parameter; "*" at the end takes all remaining arguments.
struct Builtin {
  std::string_view kinds;
  std::string_view names;
  std::string_view parameters;
  Value (*call)(Bound& args);  // null for methods that change their object: the sandbox hides them
};

/// The arguments of a call, matched to a builtin's parameters.
class Bound {
 public:
  const Builtin& builtin;
  Interpreter& interpreter;
  Budget& budget;
  Args rest;  ///< the arguments that "*" took

  Bound(const Builtin& builtin, Interpreter& interpreter, Args args);

  /// Argument `i`; undefined if it is not given.
  const Value& operator[](size_t i) const { return values_[i]; }
  /// Whether argument `i` is given, and not None.
  bool has(size_t i) const { return given_[i] && !values_[i].is_none(); }
  /// Argument `i`, an integer; `otherwise` if it is not given. Raises if it has another type.
  int64_t integer(size_t i, int64_t otherwise = 0) const;
  /// Argument `i`, a text. Raises if it has another type. Charges the budget for reading all of it.
  const std::string& string(size_t i) const;
  bool flag(size_t i) const { return given_[i] && truthy(values_[i]); }
  /// Argument `i`, of any type, converted to a text. Charges the budget for reading all of it.
  std::string text(size_t i = 0) const;
  Values list(size_t i = 0) const { return to_list(values_[i], budget); }

 private:
  Values values_;
  std::vector<bool> given_;
};

/// For example find_builtin("filter", "upper") or find_builtin("dict", "items"). Null if there is
/// none.
const Builtin* find_builtin(std::string_view kind, std::string_view name);

/// All filters.
std::span<const Builtin> filters();

/// Python's `format % args`, with the arguments as a list or as the operator's right side, and
/// `format.format(args)`.
std::string format_percent(std::string_view format, const Args& args, Budget& budget);
std::string format_percent(std::string_view format, const Value& arguments, Budget& budget);
std::string format_braces(std::string_view format, const Args& args, Budget& budget);

}  // namespace nanovllm::jinja
