#include "nanovllm/text/jinja/builtins.h"

#include <algorithm>
#include <ctime>
#include <map>

#include "nanovllm/text/jinja/text.h"

// Finding and calling builtins; the tests, the global functions and the methods of Python's str,
// list, tuple and dict and of Jinja2's loop. Some methods are filters as well, which take any value
// as a text.
namespace nanovllm::jinja {

namespace {

// The limit of Jinja2's sandbox.
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
  const Int count = std::max<Int>(0, (stop - start + step + (step > 0 ? -1 : 1)) / step);
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

/// A separator, or a set of characters.
Chars optional_text(Bound& a, size_t i) { return a.has(i) ? Chars(a.string(i)) : Chars(); }

Value list_of(Bound& a, const std::vector<std::string_view>& parts) {
  Values items;
  a.budget.step(parts.size());
  for (const std::string_view s : parts) items.push_back(make_text(s, a.budget));
  return make_list(std::move(items), a.budget);
}

template <Capitals kCapitals>
Value with_case(Bound& a) {
  return change_case(a.text(), kCapitals);
}

template <bool kLeft, bool kRight>
Value stripped(Bound& a) {  // value chars?
  const std::string s = a.text();
  const Chars chars = optional_text(a, 1);
  if (chars) a.budget.read(s.size() * chars->size());
  return {std::string(strip(s, chars, kLeft, kRight)), a[0].is_markup()};
}

template <auto kSplit>
Value split_by(Bound& a) {  // self sep? maxsplit?
  const Chars separator = optional_text(a, 1);
  if (separator && separator->empty()) raise("empty separator");
  return list_of(a, kSplit(a.string(0), separator, a.integer(2, -1)));
}

template <bool kEnd>
Value has_affix(Bound& a) {  // self affix; a tuple's items are alternatives
  const std::string& s = a.string(0);
  const auto fits = [&](const Value& affix) {
    if (!affix.defined().is_string())
      raise("{} first arg must be str or a tuple of str, not {}", a.builtin.names,
            affix.type_name());
    a.budget.step(1 + affix.string().size() / 16);
    return kEnd ? s.ends_with(affix.string()) : s.starts_with(affix.string());
  };
  if (!is_kind(a[1], Sequence::Kind::kTuple)) return fits(a[1]);
  return std::ranges::any_of(a[1].sequence()->items, fits);
}

template <bool kEnd>
Value remove_affix(Bound& a) {  // self affix
  const std::string_view s = a.string(0), affix = a.string(1);
  if (kEnd) return s.ends_with(affix) ? s.substr(0, s.size() - affix.size()) : s;
  return s.starts_with(affix) ? s.substr(affix.size()) : s;
}

template <bool kLast>
Value str_find(Bound& a) {  // self sub
  const std::string_view s = a.string(0), needle = a.string(1);
  // A search from the right compares at every position.
  if (kLast) a.budget.step(s.size() * needle.size() / 1024);
  const size_t at = kLast ? s.rfind(needle) : find_bytes(s, needle);
  return at == kNotFound ? Value(-1) : Value(count_code_points(s.substr(0, at)));
}

Value str_count(Bound& a) {  // self sub
  const std::string_view s = a.string(0), needle = a.string(1);
  if (needle.empty()) return count_code_points(s) + 1;
  int64_t count = 0;
  for (size_t i = 0; (i = find_bytes(s, needle, i)) != kNotFound; i += needle.size()) {
    a.budget.step();
    ++count;
  }
  return count;
}

template <bool kIsFilter>
Value replace(Bound& a) {  // value old new count?; the filter takes any values as texts
  const auto text = [&](size_t i) { return kIsFilter ? a.text(i) : a.string(i); };
  const std::string s = text(0), old = text(1), with = text(2);
  const int64_t limit = kIsFilter && !a.has(3) ? -1 : a.integer(3, -1);
  Writer out(a.budget);
  size_t from = 0;
  for (int64_t count = 0; count != limit; ++count) {
    // An empty text is found in front of each character and at the end.
    const bool is_skipped = old.empty() && count > 0;
    const size_t at =
        find_bytes(s, old, from + static_cast<size_t>(is_skipped ? utf8_len(s[from]) : 0));
    if (at == kNotFound) break;
    a.budget.step();
    out.add(std::string_view(s).substr(from, at - from));
    out.add(with);
    from = at + old.size();
  }
  out.add(std::string_view(s).substr(from));
  return out.take();
}

Value str_join(Bound& a) {  // self iterable
  Writer out(a.budget);
  size_t i = 0;
  for (const Value& item : a.list(1)) {
    if (!item.defined().is_string())
      raise("sequence item {}: expected str instance, {} found", i, item.type_name());
    if (i++ > 0) out.add(a.string(0));
    out.add(item.string());
  }
  return out.take();
}

/// Whether the text is not empty and all of its characters are of a kind.
template <bool (*kIs)(char32_t)>
Value all_are(Bound& a) {
  const std::string& s = a.string(0);
  for (size_t i = 0; i < s.size();)
    if (!kIs(next_code_point(s, i))) return false;
  return !s.empty();
}

Value list_index(Bound& a) {  // self value
  const Values& items = a[0].sequence()->items;
  for (size_t i = 0; i < items.size(); ++i)
    if (equal(items[i], a[1], a.budget)) return i;
  raise("{} is not in list", repr(a[1], a.budget));
}

Value list_count(Bound& a) {  // self value
  return std::ranges::count_if(a[0].sequence()->items,
                               [&](const Value& v) { return equal(v, a[1], a.budget); });
}

Value copy(Bound& a) { return a[0]; }  // nothing can change the object, so it is its own copy

/// A dictionary's keys, values or pairs.
Value dict_view(Bound& a) {
  Values items;
  for (const auto& [key, value] : a[0].dict()->items)
    items.push_back(a.builtin.names == "keys"     ? key
                    : a.builtin.names == "values" ? value
                                                  : make_tuple({key, value}, a.budget));
  return make_list(std::move(items), a.budget, Sequence::Kind::kView);
}

Value dict_get(Bound& a) {  // self key default?
  const Value* found = a[0].dict()->find(a[1], a.budget);
  return found != nullptr ? *found : a.has(2) ? a[2] : Value(None{});
}

Value loop_cycle(Bound& a) {  // self *
  if (a.rest.positional.empty()) raise("no items for cycling given");
  return a.rest.positional[static_cast<size_t>(a[0].loop()->index) % a.rest.positional.size()];
}

Value loop_changed(Bound& a) {  // self *
  Loop& loop = *a[0].loop();
  Values& now = a.rest.positional;
  const auto same = [&](const Value& x, const Value& y) { return equal(x, y, a.budget); };
  const bool changed = !loop.last_changed || !std::ranges::equal(*loop.last_changed, now, same);
  loop.last_changed = std::move(now);
  return changed;
}

constexpr Builtin kBuiltins[] = {
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

    {"filter str", "capitalize", "s", with_case<Capitals::kFirst>},
    {"filter str", "lower", "s", with_case<Capitals::kNone>},
    {"filter str", "upper", "s", with_case<Capitals::kAll>},
    {"filter", "title", "s", with_case<Capitals::kTitleFilter>},
    {"str", "title", "s", with_case<Capitals::kTitle>},
    {"filter", "replace", "s old new count?", replace<true>},
    {"str", "replace", "self old new count?", replace<false>},
    {"filter", "trim", "value chars?", stripped<true, true>},
    {"str", "strip", "self chars?", stripped<true, true>},
    {"str", "lstrip", "self chars?", stripped<true, false>},
    {"str", "rstrip", "self chars?", stripped<false, true>},

    {"str", "count", "self sub", str_count},
    {"str", "endswith", "self suffix", has_affix<true>},
    {"str", "find", "self sub", str_find<false>},
    {"str", "format", "self *",
     [](Bound& a) -> Value { return format_braces(a.string(0), a.rest, a.budget); }},
    {"str", "isalnum", "self", all_are<is_alphanumeric>},
    {"str", "isalpha", "self", all_are<is_letter>},
    {"str", "isdigit", "self", all_are<is_digit>},
    {"str", "islower", "self", [](Bound& a) -> Value { return has_case(a.string(0), false); }},
    {"str", "isspace", "self", all_are<is_space>},
    {"str", "isupper", "self", [](Bound& a) -> Value { return has_case(a.string(0), true); }},
    {"str", "join", "self iterable", str_join},
    {"str", "removeprefix", "self prefix", remove_affix<false>},
    {"str", "removesuffix", "self suffix", remove_affix<true>},
    {"str", "rfind", "self sub", str_find<true>},
    {"str", "rsplit", "self sep? maxsplit?", split_by<rsplit>},
    {"str", "split", "self sep? maxsplit?", split_by<split>},
    {"str", "splitlines", "self keepends?",
     [](Bound& a) { return list_of(a, split_lines(a.string(0), a.flag(1))); }},
    {"str", "startswith", "self prefix", has_affix<false>},

    {"list tuple range", "append clear extend insert pop remove reverse sort", "*", nullptr},
    {"list tuple range", "count", "self value", list_count},
    {"list tuple range", "index", "self value", list_index},

    {"dict", "clear pop popitem setdefault update", "*", nullptr},
    {"dict", "get", "self key default?", dict_get},
    {"dict", "items", "self", dict_view},
    {"dict", "keys", "self", dict_view},
    {"dict", "values", "self", dict_view},
    {"list tuple range dict", "copy", "self", copy},

    {"LoopContext", "changed", "self *", loop_changed},
    {"LoopContext", "cycle", "self *", loop_cycle},
};

}  // namespace

const Builtin* find_builtin(std::string_view kind, std::string_view name) {
  static const auto table = [] {
    std::map<std::pair<std::string_view, std::string_view>, const Builtin*> all;
    for (const auto& part : {filters(), std::span<const Builtin>(kBuiltins)})
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
  if (!v.is_string()) raise("{} needs a string, not {}", builtin.names, v.type_name());
  budget.read(v.string().size());
  return v.string();
}

std::string Bound::text(size_t i) const {
  std::string s = to_string(values_[i], budget);
  budget.read(s.size());
  return s;
}

}  // namespace nanovllm::jinja
