#include <algorithm>

#include "nanovllm/text/jinja/builtins.h"
#include "nanovllm/text/jinja/text.h"

// The methods of Python's str, list, tuple and dict, and of Jinja2's loop. Some are filters as
// well, which take any value as a text.
namespace nanovllm::jinja {

namespace {

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
  const Sequence* list = a[1].sequence();
  const bool is_tuple = list != nullptr && list->kind == Sequence::Kind::kTuple;
  return is_tuple ? std::ranges::any_of(list->items, fits) : fits(a[1]);
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
  // From the right, every position is compared in turn.
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
  const int64_t limit = a.integer(3, -1);
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

constexpr Builtin kMethods[] = {
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

    {"list tuple range", "append clear extend insert pop remove reverse sort", "*", is_unsafe},
    {"list tuple range", "count", "self value", list_count},
    {"list tuple range", "index", "self value", list_index},

    {"dict", "clear pop popitem setdefault update", "*", is_unsafe},
    {"dict", "get", "self key default?", dict_get},
    {"dict", "items", "self", dict_view},
    {"dict", "keys", "self", dict_view},
    {"dict", "values", "self", dict_view},
    {"list tuple range dict", "copy", "self", copy},

    {"LoopContext", "changed", "self *", loop_changed},
    {"LoopContext", "cycle", "self *", loop_cycle},
};

}  // namespace

std::span<const Builtin> methods() { return kMethods; }

Value is_unsafe(Bound& a) { raise("one of {} is unsafe", a.builtin.names); }

}  // namespace nanovllm::jinja
