#include "nanovllm/text/jinja/builtins.h"

#include <algorithm>
#include <ctime>
#include <unordered_map>

#include "nanovllm/text/jinja/text.h"

// Finding and calling builtins, the tests and the global functions.
namespace nanovllm::jinja {

namespace {

// As the sandbox has it.
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

Value raise_exception(Bound& a) { throw TemplateError(a.text()); }

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
  for (auto& [name, value] : a.rest.named) dict.set(name, std::move(value), a.budget);
  return dict;
}

Value new_namespace(Bound& a) {
  Namespace& space = a.interpreter.new_namespace();
  static_cast<Dict&>(space) = dict_of(a);
  return &space;
}

constexpr Builtin kTestsAndGlobals[] = {
    {"is ", "boolean", "x", [](Bound& a) -> Value { return a[0].is_bool(); }},
    {"is ", "callable", "x", [](Bound& a) -> Value { return a[0].function() || a[0].loop(); }},
    {"is ", "defined", "x", [](Bound& a) -> Value { return !a[0].is_undefined(); }},
    {"is ", "divisibleby", "x num", [](Bound& a) -> Value { return is_multiple(a, a[1], 0); }},
    {"is ", "eq equalto ==", "x y", test_comparison},
    {"is ", "escaped", "x", [](Bound& a) -> Value { return a[0].is_markup(); }},
    {"is ", "even", "x", [](Bound& a) -> Value { return is_multiple(a, 2, 0); }},
    {"is ", "false", "x", [](Bound& a) -> Value { return a[0].is_bool() && !truthy(a[0]); }},
    {"is ", "filter", "x",
     [](Bound& a) -> Value { return find_builtin("|", a.string(0)) != nullptr; }},
    {"is ", "float", "x", [](Bound& a) -> Value { return a[0].is_float(); }},
    {"is ", "ge >=", "x y", test_comparison},
    {"is ", "gt greaterthan >", "x y", test_comparison},
    {"is ", "in", "x seq", test_comparison},
    {"is ", "integer", "x", [](Bound& a) -> Value { return a[0].is_integer() && !a[0].is_bool(); }},
    {"is ", "iterable", "x", [](Bound& a) -> Value { return a[0].is_iterable() || a[0].loop(); }},
    {"is ", "le <=", "x y", test_comparison},
    {"is ", "lower", "x", [](Bound& a) -> Value { return is_lower(a.text()); }},
    {"is ", "lt lessthan <", "x y", test_comparison},
    {"is ", "mapping", "x", [](Bound& a) -> Value { return a[0].dict() != nullptr; }},
    {"is ", "ne !=", "x y", test_comparison},
    {"is ", "none", "x", [](Bound& a) -> Value { return a[0].is_none(); }},
    {"is ", "number", "x", [](Bound& a) -> Value { return a[0].is_number(); }},
    {"is ", "odd", "x", [](Bound& a) -> Value { return is_multiple(a, 2, 1); }},
    {"is ", "sameas", "x y", test_sameas},
    {"is ", "sequence", "x",
     [](Bound& a) -> Value {
       const Sequence* list = a[0].sequence();
       return a[0].is_string() || a[0].dict() || (list && list->is_indexable());
     }},
    {"is ", "string", "x", [](Bound& a) -> Value { return a[0].is_string(); }},
    {"is ", "test", "x",
     [](Bound& a) -> Value { return find_builtin("is ", a.string(0)) != nullptr; }},
    {"is ", "true", "x", [](Bound& a) -> Value { return a[0].is_bool() && truthy(a[0]); }},
    {"is ", "undefined", "x", [](Bound& a) -> Value { return a[0].is_undefined(); }},
    {"is ", "upper", "x", [](Bound& a) -> Value { return is_upper(a.text()); }},

    {"()", "dict", "*", [](Bound& a) { return make_dict(dict_of(a), a.budget); }},
    {"()", "namespace", "*", new_namespace},
    {"()", "raise_exception", "message", raise_exception},
    {"()", "range", "start stop? step?", range},
    {"()", "strftime_now", "format", strftime_now},
};

}  // namespace

std::span<const Builtin> tests_and_globals() { return kTestsAndGlobals; }

const Builtin* find_builtin(std::string_view kind, std::string_view name) {
  using Table = std::unordered_map<std::string_view, const Builtin*>;
  static const auto tables = [] {
    std::unordered_map<std::string_view, Table> all;  // by kind
    for (const auto& part : {filters(), tests_and_globals(), methods()})
      for (const Builtin& builtin : part)
        for (const std::string_view each : split(builtin.names, " "))
          all[builtin.kind].emplace(each, &builtin);
    return all;
  }();
  const Table& table = tables.at(kind);
  const auto found = table.find(name);
  return found == table.end() ? nullptr : found->second;
}

const Builtin* find_method(const Value& v, std::string_view name) {
  if (v.is_string()) return find_builtin("str.", name);
  if (v.dict() != nullptr) return find_builtin("dict.", name);
  if (v.loop() != nullptr) return find_builtin("loop.", name);
  if (v.sequence() != nullptr && v.sequence()->is_indexable()) return find_builtin("list.", name);
  return nullptr;
}

Bound::Bound(const Builtin& builtin, Interpreter& interpreter, Args args)
    : builtin(builtin), interpreter(interpreter), budget(interpreter.budget) {
  size_t next = 0;  // positional argument
  bool takes_rest = false;
  for (std::string_view parameter : split(builtin.parameters, " ")) {
    if (parameter == "*") {
      takes_rest = true;
      break;
    }
    const bool optional = parameter.ends_with('?');
    if (optional) parameter.remove_suffix(1);
    const auto named = args.find(parameter, budget);
    const bool is_named = next == args.positional.size() && named != args.named.end();
    given_.push_back(is_named || next < args.positional.size());
    if (is_named) {
      values_.push_back(named->second);
      args.named.erase(named);
    } else if (given_.back()) {
      values_.push_back(std::move(args.positional[next++]));
    } else if (optional) {
      values_.emplace_back();
    } else {
      raise("{}: the argument '{}' is missing", builtin.names, parameter);
    }
  }
  args.positional.erase(args.positional.begin(),
                        args.positional.begin() + static_cast<ptrdiff_t>(next));
  if (!takes_rest && !args.positional.empty())
    raise("{}: at most {} arguments", builtin.names, values_.size());
  if (!takes_rest && !args.named.empty())
    raise("{}: an unexpected argument '{}'", builtin.names, args.named[0].first);
  rest = std::move(args);
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
