#include "nanovllm/text/jinja/builtins.h"

#include <algorithm>
#include <ctime>
#include <map>

#include "nanovllm/text/jinja/text.h"

// Finding and calling builtins, the tests and the global functions.
namespace nanovllm::jinja {

namespace {

// As Jinja2's sandbox has it.
constexpr Int kMaxRange = 100'000;

/// The tests that are comparisons; the operator is the last of their names.
Value test_comparison(Bound& a) {
  const std::string_view names = a.builtin.names;
  return compare(names.substr(names.rfind(' ') + 1), a[0], a[1], a.budget);
}

bool is_multiple(Bound& a, const Value& divisor, int rest) {
  return equal(binary("%", a[0], divisor, a.budget), rest, a.budget);
}

Value test_sameas(Bound& a) {
  if (a[0].sequence() != nullptr) return a[0].sequence() == a[1].sequence();
  if (a[0].dict() != nullptr) return a[0].dict() == a[1].dict();
  return a[0].data().index() == a[1].data().index() && equal(a[0], a[1], a.budget);
}

Value test_sequence(Bound& a) {
  const Sequence* list = a[0].sequence();
  return a[0].is_string() || a[0].dict() || (list && list->is_indexable());
}

Value strftime_now(Bound& a) {
  const std::time_t now = a.interpreter.now;
  std::tm local{};
  localtime_r(&now, &local);
  const std::string& format = a.string(0);
  if (format.size() > 256) raise("strftime_now: the format is too long");
  char buffer[4096];
  a.budget.build(sizeof buffer);
  return std::string(buffer, std::strftime(buffer, sizeof buffer, format.c_str(), &local));
}

Value range(Bound& a) {  // start stop? step?
  const Int start = a.has(1) ? a.integer(0) : 0;
  const Int stop = a.integer(a.has(1) ? 1 : 0);
  const Int step = a.integer(2, 1);
  if (step == 0) raise("range() arg 3 must not be zero");
  const Int distance = step > 0 ? stop - start : start - stop;
  const Int size = step > 0 ? step : -step;
  const Int count = distance <= 0 ? 0 : (distance + size - 1) / size;
  if (count > kMaxRange) raise("range too big: {} items, at most {} are allowed", count, kMaxRange);
  Values items;
  items.reserve(static_cast<size_t>(count));
  for (Int i = 0; i < count; ++i) items.emplace_back(start + i * step);
  return make_list(std::move(items), a.budget, Sequence::Kind::kRange);
}

/// dict(mapping or pairs, **more)
Dict dict_of(Bound& a) {
  Dict dict;
  if (a.rest.positional.size() > 1) raise("dict expected at most 1 argument");
  for (const Value& source : a.rest.positional) {
    if (source.dict() != nullptr) {
      a.budget.build(source.dict()->items.size() * 2 * sizeof(Value));
      dict = *source.dict();
      continue;
    }
    for (const Value& entry : to_list(source, a.budget)) {
      Values pair = to_list(entry, a.budget);
      if (pair.size() != 2) raise("dict: an entry of {} items, not 2", pair.size());
      dict.set(std::move(pair[0]), std::move(pair[1]), a.budget);
    }
  }
  for (auto& [name, value] : a.rest.named.items) dict.set(name, std::move(value), a.budget);
  return dict;
}

Value new_namespace(Bound& a) {
  Namespace& space = a.interpreter.new_namespace();
  static_cast<Dict&>(space) = dict_of(a);
  return &space;
}

constexpr Builtin kTestsAndGlobals[] = {
    {"test", "boolean", "x", [](Bound& a) -> Value { return a[0].is_bool(); }},
    {"test", "callable", "x", [](Bound& a) -> Value { return a[0].function() || a[0].loop(); }},
    {"test", "defined", "x", [](Bound& a) -> Value { return !a[0].is_undefined(); }},
    {"test", "divisibleby", "x num", [](Bound& a) -> Value { return is_multiple(a, a[1], 0); }},
    {"test", "eq equalto ==", "x y", test_comparison},
    {"test", "escaped", "x", [](Bound& a) -> Value { return a[0].is_markup(); }},
    {"test", "even", "x", [](Bound& a) -> Value { return is_multiple(a, 2, 0); }},
    {"test", "false", "x", [](Bound& a) -> Value { return a[0].is_bool() && !truthy(a[0]); }},
    {"test", "filter", "x",
     [](Bound& a) -> Value { return find_builtin("filter", a.string(0)) != nullptr; }},
    {"test", "float", "x", [](Bound& a) -> Value { return a[0].is_float(); }},
    {"test", "ge >=", "x y", test_comparison},
    {"test", "gt greaterthan >", "x y", test_comparison},
    {"test", "in", "x seq", test_comparison},
    {"test", "integer", "x",
     [](Bound& a) -> Value { return a[0].is_integer() && !a[0].is_bool(); }},
    {"test", "iterable", "x", [](Bound& a) -> Value { return a[0].is_iterable() || a[0].loop(); }},
    {"test", "le <=", "x y", test_comparison},
    {"test", "lower", "x", [](Bound& a) -> Value { return has_case(a.text(), false); }},
    {"test", "lt lessthan <", "x y", test_comparison},
    {"test", "mapping", "x", [](Bound& a) -> Value { return a[0].dict() != nullptr; }},
    {"test", "ne !=", "x y", test_comparison},
    {"test", "none", "x", [](Bound& a) -> Value { return a[0].is_none(); }},
    {"test", "number", "x", [](Bound& a) -> Value { return a[0].is_number(); }},
    {"test", "odd", "x", [](Bound& a) -> Value { return is_multiple(a, 2, 1); }},
    {"test", "sameas", "x y", test_sameas},
    {"test", "sequence", "x", test_sequence},
    {"test", "string", "x", [](Bound& a) -> Value { return a[0].is_string(); }},
    {"test", "test", "x",
     [](Bound& a) -> Value { return find_builtin("test", a.string(0)) != nullptr; }},
    {"test", "true", "x", [](Bound& a) -> Value { return a[0].is_bool() && truthy(a[0]); }},
    {"test", "undefined", "x", [](Bound& a) -> Value { return a[0].is_undefined(); }},
    {"test", "upper", "x", [](Bound& a) -> Value { return has_case(a.text(), true); }},

    {"global", "dict", "*", [](Bound& a) { return make_dict(dict_of(a), a.budget); }},
    {"global", "namespace", "*", new_namespace},
    {"global", "raise_exception", "message", [](Bound& a) -> Value { raise("{}", a.text()); }},
    {"global", "range", "start stop? step?", range},
    {"global", "strftime_now", "format", strftime_now},
};

}  // namespace

std::span<const Builtin> tests_and_globals() { return kTestsAndGlobals; }

const Builtin* find_builtin(std::string_view kind, std::string_view name) {
  static const auto table = [] {
    std::map<std::pair<std::string_view, std::string_view>, const Builtin*> all;
    for (const auto& part : {filters(), tests_and_globals(), methods()})
      for (const Builtin& builtin : part)
        for (const std::string_view each_kind : split(builtin.kinds, " "))
          for (const std::string_view each : split(builtin.names, " "))
            all[{each_kind, each}] = &builtin;
    return all;
  }();
  const auto found = table.find({kind, name});
  return found == table.end() ? nullptr : found->second;
}

Bound::Bound(const Builtin& builtin, Interpreter& interpreter, Args args)
    : builtin(builtin),
      interpreter(interpreter),
      budget(interpreter.budget),
      rest(std::move(args)) {
  for (std::string_view parameter : split(builtin.parameters, " ")) {
    if (parameter == "*") {
      rest.positional = rest.take_rest();
      return;
    }
    const bool optional = parameter.ends_with('?');
    if (optional) parameter.remove_suffix(1);
    std::optional<Value> value = rest.take(parameter, budget);
    if (!value && !optional) raise("{}: the argument '{}' is missing", builtin.names, parameter);
    given_.push_back(value.has_value());
    values_.push_back(std::move(value).value_or(Value()));
  }
  rest.expect_no_positional(builtin.names);
  rest.expect_no_named(builtin.names);
}

int64_t Bound::integer(size_t i, int64_t otherwise) const {
  if (!given_[i]) return otherwise;
  const Value& v = values_[i].defined();
  if (!v.is_integer()) raise("{} needs an integer, not {}", builtin.names, v.type_name());
  return static_cast<int64_t>(std::clamp<Int>(v.integer(), INT64_MIN, INT64_MAX));
}

const std::string& Bound::string(size_t i) const {
  const Value& v = values_[i].defined();
  if (!v.is_string()) raise("{} needs a text, not {}", builtin.names, v.type_name());
  budget.read(v.string().size());
  return v.string();
}

std::string Bound::text(size_t i) const {
  std::string s = to_string(values_[i], budget);
  budget.read(s.size());
  return s;
}

}  // namespace nanovllm::jinja
