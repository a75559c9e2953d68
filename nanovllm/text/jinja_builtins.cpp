#include "nanovllm/text/jinja_builtins.h"

#include <algorithm>
#include <ctime>

#include "nanovllm/text/jinja_interpreter.h"
#include "nanovllm/text/jinja_text.h"

// Calling builtins, the tests ("is ...") and the global functions.
namespace nanovllm::jinja {

namespace {

// As the sandbox has it.
constexpr Int kMaxRange = 100'000;

Int remainder_of(Bound& a, const Value& divisor) {
  const Value rest = binary("%", a[0], divisor, a.interpreter);
  if (!rest.is_number()) raise("not a number: {}", a[0].type_name());
  return rest.number() == 0 ? 0 : rest.number() == 1 ? 1 : 2;
}

template <int kOrder, bool kOrEqual>
Value test_order(Bound& a) {
  const int order = compare(a[0], a[1], kOrder < 0 ? "<" : ">", a.budget);
  return order == kOrder || (kOrEqual && order == 0);
}

Value test_eq(Bound& a) { return equal(a[0], a[1], a.budget); }
Value test_ne(Bound& a) { return !equal(a[0], a[1], a.budget); }
Value test_sameas(Bound& a) {
  const bool same_type = a[0].data().index() == a[1].data().index();
  if (a[0].sequence() != nullptr) return a[0].sequence() == a[1].sequence();
  if (a[0].dict() != nullptr) return a[0].dict() == a[1].dict();
  return same_type && equal(a[0], a[1], a.budget);
}
Value test_sequence(Bound& a) {
  return a[0].is_string() || a[0].dict() != nullptr ||
         (a[0].sequence() != nullptr && a[0].sequence()->indexable());
}

constexpr Builtin kTests[] = {
    {"boolean", "x", [](Bound& a) -> Value { return a[0].is_bool(); }},
    {"callable", "x", [](Bound& a) -> Value { return a[0].is_callable(); }},
    {"defined", "x", [](Bound& a) -> Value { return !a[0].is_undefined(); }},
    {"divisibleby", "x num", [](Bound& a) -> Value { return remainder_of(a, a[1]) == 0; }},
    {"eq", "x y", test_eq},
    {"equalto", "x y", test_eq},
    {"==", "x y", test_eq},
    {"escaped", "x", [](Bound& a) -> Value { return a[0].is_markup(); }},
    {"even", "x", [](Bound& a) -> Value { return remainder_of(a, 2) == 0; }},
    {"false", "x", [](Bound& a) -> Value { return a[0].is_bool() && !truthy(a[0]); }},
    {"filter", "x", [](Bound& a) -> Value { return find_filter(a.string(0)) != nullptr; }},
    {"float", "x", [](Bound& a) -> Value { return a[0].is_float(); }},
    {"ge", "x y", test_order<1, true>},
    {">=", "x y", test_order<1, true>},
    {"greaterthan", "x y", test_order<1, false>},
    {"gt", "x y", test_order<1, false>},
    {">", "x y", test_order<1, false>},
    {"in", "x seq", [](Bound& a) -> Value { return contains(a[1], a[0], a.budget); }},
    {"integer", "x", [](Bound& a) -> Value { return a[0].is_integer() && !a[0].is_bool(); }},
    {"iterable", "x", [](Bound& a) -> Value { return is_iterable(a[0]); }},
    {"le", "x y", test_order<-1, true>},
    {"<=", "x y", test_order<-1, true>},
    {"lessthan", "x y", test_order<-1, false>},
    {"lower", "x", [](Bound& a) -> Value { return is_lower(to_string(a[0], a.budget)); }},
    {"lt", "x y", test_order<-1, false>},
    {"<", "x y", test_order<-1, false>},
    {"mapping", "x", [](Bound& a) -> Value { return a[0].dict() != nullptr; }},
    {"ne", "x y", test_ne},
    {"!=", "x y", test_ne},
    {"none", "x", [](Bound& a) -> Value { return a[0].is_none(); }},
    {"number", "x", [](Bound& a) -> Value { return a[0].is_number(); }},
    {"odd", "x", [](Bound& a) -> Value { return remainder_of(a, 2) == 1; }},
    {"sameas", "x y", test_sameas},
    {"sequence", "x", test_sequence},
    {"string", "x", [](Bound& a) -> Value { return a[0].is_string(); }},
    {"test", "x", [](Bound& a) -> Value { return find_test(a.string(0)) != nullptr; }},
    {"true", "x", [](Bound& a) -> Value { return a[0].is_bool() && truthy(a[0]); }},
    {"undefined", "x", [](Bound& a) -> Value { return a[0].is_undefined(); }},
    {"upper", "x", [](Bound& a) -> Value { return is_upper(to_string(a[0], a.budget)); }},
};

Value global_raise_exception(Bound& a) { throw TemplateError(to_string(a[0], a.budget)); }

Value global_strftime_now(Bound& a) {
  const std::time_t now = a.interpreter.now();
  std::tm local{};
  localtime_r(&now, &local);
  const std::string& format = a.string(0);
  if (format.size() > 256) raise("strftime_now: the format is too long");
  char buffer[4096];
  return std::string(buffer, std::strftime(buffer, sizeof buffer, format.c_str(), &local));
}

Value global_range(Bound& a) {  // start stop? step?
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
  std::string name = step == 1 ? fmt::format("range({}, {})", start, stop)
                               : fmt::format("range({}, {}, {})", start, stop, step);
  return make_list(std::move(items), a.budget, Sequence::Kind::kRange, std::move(name));
}

/// dict(mapping or pairs, **more)
Dict make_dict_of(Bound& a) {
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

Value global_dict(Bound& a) { return make_dict(make_dict_of(a), a.budget); }

Value global_namespace(Bound& a) {
  Namespace* space = a.interpreter.make_namespace();
  for (auto& [key, value] : make_dict_of(a).items)
    space->attributes.emplace_back(to_string(key, a.budget), std::move(value));
  return space;
}

constexpr Builtin kGlobals[] = {
    {"dict", "*", global_dict},
    {"namespace", "*", global_namespace},
    {"raise_exception", "message", global_raise_exception},
    {"range", "start stop? step?", global_range},
    {"strftime_now", "format", global_strftime_now},
};

template <size_t kSize>
const Builtin* find_in(const Builtin (&table)[kSize], std::string_view name) {
  const auto* found = std::ranges::find(table, name, &Builtin::name);
  return found == std::end(table) ? nullptr : found;
}

}  // namespace

Bound::Bound(const Builtin& builtin, Interpreter& interpreter, Budget& budget, Args args)
    : interpreter(interpreter), budget(budget), builtin_(builtin) {
  size_t next = 0;  // positional argument
  bool takes_rest = false;
  for (std::string_view parameter : split(builtin.parameters, " ")) {
    if (parameter == "*") {
      takes_rest = true;
      break;
    }
    const bool optional = parameter.ends_with('?');
    if (optional) parameter.remove_suffix(1);
    const auto named =
        std::ranges::find(args.named, parameter, &std::pair<std::string, Value>::first);
    Value value;
    const bool given = next < args.positional.size() || named != args.named.end();
    if (next < args.positional.size()) {
      value = std::move(args.positional[next++]);
    } else if (given) {
      value = std::move(named->second);
      args.named.erase(named);
    } else if (!optional) {
      raise("{}() is missing its argument '{}'", builtin.name, parameter);
    }
    values_.push_back(std::move(value));
    given_.push_back(given);
  }
  args.positional.erase(args.positional.begin(),
                        args.positional.begin() + static_cast<ptrdiff_t>(next));
  if (!takes_rest && !args.positional.empty())
    raise("{}() takes at most {} arguments", builtin.name, values_.size());
  if (!takes_rest && !args.named.empty())
    raise("{}() got an unexpected argument '{}'", builtin.name, args.named[0].first);
  rest = std::move(args);
}

int64_t Bound::integer(size_t i, int64_t otherwise) const {
  if (!has(i)) return otherwise;
  const Value& v = values_[i].defined();
  if (!v.is_integer()) raise("{}() needs an integer, not {}", builtin_.name, v.type_name());
  return static_cast<int64_t>(std::clamp<Int>(v.integer(), INT64_MIN, INT64_MAX));
}

const std::string& Bound::string(size_t i) const {
  const Value& v = values_[i].defined();
  if (!v.is_string()) raise("{}() needs a text, not {}", builtin_.name, v.type_name());
  return v.string();
}

const Builtin* find_test(std::string_view name) { return find_in(kTests, name); }
const Builtin* find_global(std::string_view name) { return find_in(kGlobals, name); }

}  // namespace nanovllm::jinja
