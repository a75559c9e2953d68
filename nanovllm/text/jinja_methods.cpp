#include <algorithm>

#include "nanovllm/text/jinja_builtins.h"
#include "nanovllm/text/jinja_interpreter.h"
#include "nanovllm/text/jinja_text.h"

// The methods of Python's str, list, tuple and dict, and of Jinja2's loop. A method's first
// argument is its object.
namespace nanovllm::jinja {

namespace {

/// An argument that is a text, or absent where it is None or not given.
Chars optional_text(Bound& a, size_t i) {
  if (!a.has(i) || a[i].is_none()) return std::nullopt;
  return a.string(i);
}

/// A copy of a part of the object.
Value part(Bound& a, std::string_view s) {
  a.budget.build(s.size());
  return s;
}

Value list_of(Bound& a, const std::vector<std::string_view>& parts) {
  Values items;
  for (const std::string_view s : parts) items.push_back(part(a, s));
  return make_list(std::move(items), a.budget);
}

/// Whatever maps characters writes at most about as much as it reads.
template <std::string (*kMap)(std::string_view)>
Value mapped(Bound& a) {
  a.budget.read(a.string(0).size());
  a.budget.build(a.string(0).size());
  return kMap(a.string(0));
}

template <bool kLeft, bool kRight>
Value stripped(Bound& a) {  // self chars
  const Chars chars = optional_text(a, 1);
  a.budget.read(a.string(0).size() * (chars ? chars->size() : 1));
  return part(a, strip(a.string(0), chars, kLeft, kRight));
}

template <auto kSplit>
Value split_by(Bound& a) {  // self sep maxsplit
  const Chars separator = optional_text(a, 1);
  if (separator && separator->empty()) raise("empty separator");
  a.budget.build(a.string(0).size());
  return list_of(a, kSplit(a.string(0), separator, a.integer(2, -1)));
}

Value str_splitlines(Bound& a) { return list_of(a, split_lines(a.string(0), a.flag(1))); }

template <bool kEnd>
Value has_affix(Bound& a) {  // self affix; a tuple's items are alternatives
  const std::string& s = a.string(0);
  const auto fits = [&](const Value& affix) {
    if (!affix.defined().is_string())
      raise("{} first arg must be str or a tuple of str, not {}", kEnd ? "endswith" : "startswith",
            affix.type_name());
    return kEnd ? s.ends_with(affix.string()) : s.starts_with(affix.string());
  };
  const Sequence* list = a[1].sequence();
  const bool is_tuple = list != nullptr && list->kind == Sequence::Kind::kTuple;
  return is_tuple ? std::ranges::any_of(list->items, fits) : fits(a[1]);
}

template <bool kLast>
Value str_find(Bound& a) {  // self sub
  const std::string_view s = a.string(0), needle = a.string(1);
  a.budget.read(s.size());
  // From the right every place is looked at in turn.
  if (kLast) a.budget.step(static_cast<int64_t>(s.size() / 1024 * needle.size()));
  const size_t at = kLast ? s.rfind(needle) : find(s, needle);
  return at == kNotFound ? Value(-1) : Value(count_code_points(s.substr(0, at)));
}

Value str_count(Bound& a) {  // self sub
  const std::string_view s = a.string(0), needle = a.string(1);
  a.budget.read(s.size());
  if (needle.empty()) return count_code_points(s) + 1;
  int64_t count = 0;
  for (size_t i = find(s, needle); i != kNotFound; i = find(s, needle, i + needle.size())) ++count;
  return count;
}

Value str_replace(Bound& a) {  // self old new count
  const std::string_view s = a.string(0), old = a.string(1), with = a.string(2);
  int64_t left = a.integer(3, -1);
  Writer out(a.budget);
  size_t from = 0;
  for (; left != 0; --left) {
    size_t at = find(s, old, from);
    if (at == kNotFound) break;
    if (old.empty()) {  // before each character, and at the end
      out.add(with);
      if (from == s.size()) break;
      at = from;
      next_code_point(s, from);
      out.add(s.substr(at, from - at));
      continue;
    }
    out.add(s.substr(from, at - from));
    out.add(with);
    from = at + old.size();
  }
  out.add(s.substr(from));
  return out.take();
}

Value str_join(Bound& a) {
  Writer out(a.budget);
  size_t i = 0;
  for (const Value& item : to_list(a[1], a.budget)) {
    if (!item.defined().is_string())
      raise("sequence item {}: expected str instance, {} found", i, item.type_name());
    if (i++ > 0) out.add(a.string(0));
    out.add(item.string());
  }
  return out.take();
}

Value str_removeprefix(Bound& a) {
  const std::string_view s = a.string(0), affix = a.string(1);
  return part(a, s.starts_with(affix) ? s.substr(affix.size()) : s);
}
Value str_removesuffix(Bound& a) {
  const std::string_view s = a.string(0), affix = a.string(1);
  return part(a, s.ends_with(affix) ? s.substr(0, s.size() - affix.size()) : s);
}

/// All characters are of a kind, and there is one.
template <bool (*kIs)(char32_t)>
Value all_are(Bound& a) {
  const std::string& s = a.string(0);
  a.budget.read(s.size());
  for (size_t i = 0; i < s.size();)
    if (!kIs(next_code_point(s, i))) return false;
  return !s.empty();
}
bool is_alphanumeric(char32_t c) { return is_letter(c) || is_digit(c); }

Value str_islower(Bound& a) { return is_lower(a.string(0)); }
Value str_isupper(Bound& a) { return is_upper(a.string(0)); }
Value str_format(Bound& a) { return format_braces(a.string(0), a.rest, a.budget); }

constexpr Builtin kStrMethods[] = {
    {"capitalize", "self", mapped<capitalize>},
    {"count", "self sub", str_count},
    {"endswith", "self suffix", has_affix<true>},
    {"find", "self sub", str_find<false>},
    {"format", "self *", str_format},
    {"isalnum", "self", all_are<is_alphanumeric>},
    {"isalpha", "self", all_are<is_letter>},
    {"isdigit", "self", all_are<is_digit>},
    {"islower", "self", str_islower},
    {"isspace", "self", all_are<is_space>},
    {"isupper", "self", str_isupper},
    {"join", "self iterable", str_join},
    {"lower", "self", mapped<to_lower>},
    {"lstrip", "self chars?", stripped<true, false>},
    {"removeprefix", "self prefix", str_removeprefix},
    {"removesuffix", "self suffix", str_removesuffix},
    {"replace", "self old new count?", str_replace},
    {"rfind", "self sub", str_find<true>},
    {"rsplit", "self sep? maxsplit?", split_by<rsplit>},
    {"rstrip", "self chars?", stripped<false, true>},
    {"split", "self sep? maxsplit?", split_by<split>},
    {"splitlines", "self keepends?", str_splitlines},
    {"startswith", "self prefix", has_affix<false>},
    {"strip", "self chars?", stripped<true, true>},
    {"title", "self", mapped<title>},
    {"upper", "self", mapped<to_upper>},
};

Value list_index(Bound& a) {  // self value
  const Values& items = a[0].sequence()->items;
  for (size_t i = 0; i < items.size(); ++i)
    if (equal(items[i], a[1], a.budget)) return i;
  raise("{} is not in list", repr(a[1], a.budget));
}
Value list_count(Bound& a) {
  return std::ranges::count_if(a[0].sequence()->items,
                               [&](const Value& v) { return equal(v, a[1], a.budget); });
}
Value list_copy(Bound& a) { return a[0]; }  // nothing can change either of them

constexpr Builtin kListMethods[] = {
    {"copy", "self", list_copy},
    {"count", "self value", list_count},
    {"index", "self value", list_index},
};

Value view(Bound& a, std::string name, Value (*make)(const std::pair<Value, Value>&, Budget&)) {
  Values items;
  for (const auto& item : a[0].dict()->items) items.push_back(make(item, a.budget));
  return make_list(std::move(items), a.budget, Sequence::Kind::kView, std::move(name));
}

using Item = std::pair<Value, Value>;

Value dict_get(Bound& a) {  // self key default
  const Value* found = a[0].dict()->find(a[1], a.budget);
  return found != nullptr ? *found : a.has(2) ? a[2] : Value(None{});
}
Value dict_items(Bound& a) {
  return view(a, "dict_items", [](const Item& i, Budget& b) {
    return make_tuple({i.first, i.second}, b);
  });
}
Value dict_keys(Bound& a) {
  return view(a, "dict_keys", [](const Item& i, Budget&) { return i.first; });
}
Value dict_values(Bound& a) {
  return view(a, "dict_values", [](const Item& i, Budget&) { return i.second; });
}

constexpr Builtin kDictMethods[] = {
    {"copy", "self", list_copy},     {"get", "self key default?", dict_get},
    {"items", "self", dict_items},   {"keys", "self", dict_keys},
    {"values", "self", dict_values},
};

Value loop_cycle(Bound& a) {  // self *
  if (a.rest.positional.empty()) raise("no items for cycling given");
  return a.rest.positional[static_cast<size_t>(a[0].loop()->index) % a.rest.positional.size()];
}

Value loop_changed(Bound& a) {  // self *
  Loop& loop = *a[0].loop();
  const bool same =
      loop.has_changed && loop.last_changed.size() == a.rest.positional.size() &&
      std::ranges::equal(loop.last_changed, a.rest.positional,
                         [&](const Value& x, const Value& y) { return equal(x, y, a.budget); });
  loop.has_changed = true;
  loop.last_changed = std::move(a.rest.positional);
  return !same;
}

constexpr Builtin kLoopMethods[] = {
    {"changed", "self *", loop_changed},
    {"cycle", "self *", loop_cycle},
};

constexpr std::string_view kListMutators[] = {"append", "clear",  "extend",  "insert",
                                              "pop",    "remove", "reverse", "sort"};
constexpr std::string_view kDictMutators[] = {"clear", "pop", "popitem", "setdefault", "update"};

template <size_t kSize>
const Builtin* find_in(const Builtin (&table)[kSize], std::string_view name) {
  const auto* found = std::ranges::find(table, name, &Builtin::name);
  return found == std::end(table) ? nullptr : found;
}

}  // namespace

const Builtin* find_method(const Value& v, std::string_view name) {
  if (v.is_string()) return find_in(kStrMethods, name);
  if (v.dict() != nullptr) return find_in(kDictMethods, name);
  if (v.loop() != nullptr) return find_in(kLoopMethods, name);
  if (const Sequence* list = v.sequence(); list != nullptr && list->indexable())
    return find_in(kListMethods, name);
  return nullptr;
}

bool is_mutator(const Value& v, std::string_view name) {
  if (v.dict() != nullptr) return std::ranges::find(kDictMutators, name) != std::end(kDictMutators);
  return v.sequence() != nullptr && v.sequence()->kind == Sequence::Kind::kList &&
         std::ranges::find(kListMutators, name) != std::end(kListMutators);
}

}  // namespace nanovllm::jinja
