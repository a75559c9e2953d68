#include <algorithm>
#include <functional>

#include "nanovllm/text/jinja_builtins.h"
#include "nanovllm/text/jinja_interpreter.h"
#include "nanovllm/text/jinja_text.h"

namespace nanovllm::jinja {

namespace {

Value iterator(Values items, Bound& a) {
  return make_list(std::move(items), a.budget, Sequence::Kind::kIterator, "<generator object>");
}

std::string text(Bound& a, size_t i = 0) {
  std::string s = to_string(a[i], a.budget);
  a.budget.read(s.size());
  return s;
}

/// "a.0.b" as the keys to follow; a number alone is one key, none is the item itself.
Values attribute_path(const Value& attribute) {
  if (attribute.is_none()) return {};
  if (!attribute.is_string()) return {attribute};
  Values path;
  for (const std::string_view part : split(attribute.string(), ".")) {
    const std::optional<Int> index = parse_integer(part);
    path.push_back(index ? Value(*index) : Value(part));
  }
  return path;
}

Value follow(Value item, const Values& path, Interpreter& interpreter) {
  for (const Value& key : path) item = interpreter.item(item, key);
  return item;
}

/// What sort, unique, min and max compare: the item or an attribute of it, without case unless
/// asked for.
struct Key {
  Bound& a;
  Values path;
  bool case_sensitive;

  Key(Bound& a, size_t attribute, size_t case_sensitive)
      : a(a),
        path(a.has(attribute) ? attribute_path(a[attribute]) : Values{}),
        case_sensitive(a.flag(case_sensitive)) {}

  Value operator()(const Value& item) const {
    Value v = follow(item, path, a.interpreter);
    if (case_sensitive || !v.is_string()) return v;
    a.budget.build(v.string().size());
    return to_lower(v.string());
  }
};

/// Stable, by keys computed once.
Value sort_by(Values items, const std::function<Value(const Value&)>& key, bool reverse,
              Budget& budget) {
  std::vector<std::pair<Value, Value>> keyed;
  budget.build(items.size() * 2 * sizeof(Value));
  for (Value& item : items) keyed.emplace_back(key(item), std::move(item));
  std::ranges::stable_sort(keyed, [&](const auto& x, const auto& y) {
    return compare((reverse ? y : x).first, (reverse ? x : y).first, "<", budget) == -1;
  });
  for (size_t i = 0; i < items.size(); ++i) items[i] = std::move(keyed[i].second);
  return make_list(std::move(items), budget);
}

Value filter_sort(Bound& a) {  // value reverse case_sensitive attribute
  std::vector<Key> keys(1, Key(a, 3, 2));
  if (a.has(3) && a[3].is_string()) {
    keys.clear();
    for (const std::string_view part : split(a[3].string(), ",")) {
      keys.emplace_back(a, 3, 2);
      keys.back().path = attribute_path(part);
    }
  }
  const auto key = [&](const Value& item) {
    Values values;
    for (const Key& k : keys) values.push_back(k(item));
    return make_list(std::move(values), a.budget);
  };
  return sort_by(to_list(a[0], a.budget), key, a.flag(1), a.budget);
}

Value filter_dictsort(Bound& a) {  // value case_sensitive by reverse
  const Dict* dict = a[0].defined().dict();
  if (dict == nullptr) raise("dictsort needs a mapping, not {}", a[0].type_name());
  const std::string by = a.has(2) ? a.string(2) : "key";
  if (by != "key" && by != "value") raise("dictsort sorts by either \"key\" or \"value\"");
  Values pairs;
  for (const auto& [key, value] : dict->items) pairs.push_back(make_tuple({key, value}, a.budget));
  const auto key = [&](const Value& pair) {
    const Value& v = pair.sequence()->items[by == "key" ? 0 : 1];
    return a.flag(1) || !v.is_string() ? v : Value(to_lower(v.string()));
  };
  return sort_by(std::move(pairs), key, a.flag(3), a.budget);
}

Value filter_unique(Bound& a) {  // value case_sensitive attribute
  const Key key(a, 2, 1);
  Values seen, items;
  for (const Value& item : to_list(a[0], a.budget)) {
    Value k = key(item);
    if (std::ranges::any_of(seen, [&](const Value& s) { return equal(s, k, a.budget); })) continue;
    seen.push_back(std::move(k));
    items.push_back(item);
  }
  return iterator(std::move(items), a);
}

Value extreme(Bound& a, int wanted) {  // value case_sensitive attribute
  const Key key(a, 2, 1);
  const Values items = to_list(a[0], a.budget);
  if (items.empty()) return Value::undefined("No aggregated item, sequence was empty.");
  size_t best = 0;
  for (size_t i = 1; i < items.size(); ++i)
    if (compare(key(items[i]), key(items[best]), wanted < 0 ? "<" : ">", a.budget) == wanted)
      best = i;
  return items[best];
}
Value filter_min(Bound& a) { return extreme(a, -1); }
Value filter_max(Bound& a) { return extreme(a, 1); }

Value filter_sum(Bound& a) {  // iterable attribute start
  const Values path = a.has(1) ? attribute_path(a[1]) : Values{};
  Value sum = a.has(2) ? a[2] : Value(0);
  for (const Value& item : to_list(a[0], a.budget))
    sum = binary("+", sum, follow(item, path, a.interpreter), a.interpreter);
  return sum;
}

const Builtin& require_known(const Builtin* (*find)(std::string_view), const char* what,
                             const Value& name, Bound& a) {
  const Builtin* found = find(to_string(name, a.budget));
  if (found == nullptr) raise("no {} named {}", what, repr(name, a.budget));
  return *found;
}

Value filter_map(Bound& a) {  // value *
  if (!truthy(a[0])) return iterator({}, a);
  Values items = to_list(a[0], a.budget);
  const Args& rest = a.rest;
  if (rest.positional.empty()) {  // attribute default
    const auto named = [&](std::string_view name) {
      const auto it = std::ranges::find(rest.named, name, &std::pair<std::string, Value>::first);
      return it == rest.named.end() ? Value(None{}) : it->second;
    };
    const Value otherwise = named("default");
    if (named("attribute").is_none()) raise("map needs the name of a filter, or an attribute");
    for (const Value& key : attribute_path(named("attribute")))
      for (Value& item : items) {
        item = a.interpreter.item(item, key);
        if (item.is_undefined() && !otherwise.is_none()) item = otherwise;
      }
    return iterator(std::move(items), a);
  }
  const Builtin& filter = require_known(find_filter, "filter", rest.positional[0], a);
  for (Value& item : items) {
    Args args = rest;
    args.positional[0] = std::move(item);
    item = a.interpreter.call(filter, std::move(args));
  }
  return iterator(std::move(items), a);
}

/// select, reject (by a test of the item) and selectattr, rejectattr (of an attribute); truth is
/// the default test.
Value filter_items(Bound& a, bool wanted, bool by_attribute) {  // value *
  if (!truthy(a[0])) return iterator({}, a);
  Args rest = a.rest;
  Values path;
  if (by_attribute) {
    if (rest.positional.empty()) raise("missing parameter for attribute name");
    path = attribute_path(rest.positional[0]);
    rest.positional.erase(rest.positional.begin());
  }
  const Builtin* test = nullptr;
  if (!rest.positional.empty()) test = &require_known(find_test, "test", rest.positional[0], a);
  Values chosen;
  for (Value& item : to_list(a[0], a.budget)) {
    Value v = follow(item, path, a.interpreter);
    if (test != nullptr) {
      Args args = rest;
      args.positional[0] = std::move(v);
      v = a.interpreter.call(*test, std::move(args));
    }
    if (truthy(v) == wanted) chosen.push_back(std::move(item));
  }
  return iterator(std::move(chosen), a);
}
Value filter_select(Bound& a) { return filter_items(a, true, false); }
Value filter_reject(Bound& a) { return filter_items(a, false, false); }
Value filter_selectattr(Bound& a) { return filter_items(a, true, true); }
Value filter_rejectattr(Bound& a) { return filter_items(a, false, true); }

Value filter_first(Bound& a) {
  const Sequence* list = a[0].sequence();
  if (list != nullptr && list->kind == Sequence::Kind::kIterator) {
    if (list->next < list->items.size()) return list->items[list->next++];
  } else if (Values items = to_list(a[0], a.budget); !items.empty()) {
    return items.front();
  }
  return Value::undefined("No first item, sequence was empty.");
}

Value filter_last(Bound& a) {
  const Sequence* list = a[0].sequence();
  if (list != nullptr && list->kind == Sequence::Kind::kIterator)
    raise("'generator' object is not reversible");
  const Values items = to_list(a[0], a.budget);
  return items.empty() ? Value::undefined("No last item, sequence was empty.") : items.back();
}

Value filter_reverse(Bound& a) {
  if (a[0].is_string()) return slice(a[0], None{}, None{}, -1, a.budget);
  const bool is_iterator =
      a[0].sequence() != nullptr && a[0].sequence()->kind == Sequence::Kind::kIterator;
  Values items = to_list(a[0], a.budget);
  std::ranges::reverse(items);
  return is_iterator ? make_list(std::move(items), a.budget) : iterator(std::move(items), a);
}

Value filter_items_of(Bound& a) {
  if (a[0].is_undefined()) return iterator({}, a);
  if (a[0].dict() == nullptr) raise("items: can only get item pairs from a mapping");
  Values pairs;
  for (const auto& [key, value] : a[0].dict()->items)
    pairs.push_back(make_tuple({key, value}, a.budget));
  return iterator(std::move(pairs), a);
}

Value filter_join(Bound& a) {  // value d attribute
  const Values path = a.has(2) ? attribute_path(a[2]) : Values{};
  const std::string separator = a.has(1) ? text(a, 1) : "";
  Writer out(a.budget);
  bool first = true;
  for (const Value& item : to_list(a[0], a.budget)) {
    if (!std::exchange(first, false)) out.add(separator);
    write(out, follow(item, path, a.interpreter));
  }
  return out.take();
}

/// So many spaces, or the text itself.
std::string indentation(Bound& a, size_t i, int64_t otherwise) {
  if (a.has(i) && a[i].is_string()) return a[i].string();
  return std::string(static_cast<size_t>(std::clamp<int64_t>(a.integer(i, otherwise), 0, 1000)),
                     ' ');
}

Value filter_indent(Bound& a) {  // s width first blank
  const std::string lines = a.string(0) + "\n";
  const std::string indent = indentation(a, 1, 4);
  Writer out(a.budget);
  if (a.flag(2)) out.add(indent);
  bool first = true;
  for (const std::string_view line : split_lines(lines)) {
    if (!first) out.add("\n");
    if (!first && (!line.empty() || a.flag(3))) out.add(indent);
    out.add(line);
    first = false;
  }
  return out.take();
}

Value filter_replace(Bound& a) {  // s old new count
  Args args;
  for (size_t i = 0; i < 3; ++i) args.positional.emplace_back(text(a, i));
  if (a.has(3) && !a[3].is_none()) args.positional.push_back(a[3]);
  const Builtin& method = *find_method(args.positional[0], "replace");
  return a.interpreter.call(method, std::move(args));
}

Value filter_tojson(Bound& a) {  // x ensure_ascii indent separators sort_keys
  JsonStyle style;
  style.ensure_ascii = a.flag(1);
  style.sort_keys = a.flag(4);
  if (a.has(2) && !a[2].is_none()) {
    style.pretty = true;
    style.item_separator.pop_back();
    style.indent = indentation(a, 2, 0);
  }
  if (a.has(3) && !a[3].is_none()) {
    const Values pair = to_list(a[3], a.budget);
    if (pair.size() != 2 || !pair[0].is_string() || !pair[1].is_string())
      raise("tojson: separators must be two texts");
    style.item_separator = pair[0].string();
    style.key_separator = pair[1].string();
  }
  return to_json(a[0], style, a.budget);
}

Value filter_trim(Bound& a) {  // value chars
  const std::string s = text(a);
  const Chars chars = a.has(1) && !a[1].is_none() ? Chars(a.string(1)) : Chars();
  a.budget.read(s.size() * (chars ? chars->size() : 1));
  return {std::string(strip(s, chars)), a[0].is_markup()};
}

Value filter_escape(Bound& a) {
  if (a[0].is_markup()) return a[0];
  Writer out(a.budget);
  out.add(escape_html(text(a)));
  return {out.take(), true};
}

Value filter_default(Bound& a) {  // value default_value boolean
  const bool keep = a.flag(2) ? truthy(a[0]) : !a[0].is_undefined();
  return keep ? a[0] : a.has(1) ? a[1] : Value("");
}

Value filter_capitalize(Bound& a) { return capitalize(text(a)); }
Value filter_format(Bound& a) { return format_percent(text(a), a.rest, a.budget); }
Value filter_length(Bound& a) { return length(a[0], a.budget); }
Value filter_list(Bound& a) { return make_list(to_list(a[0], a.budget), a.budget); }
Value filter_lower(Bound& a) { return to_lower(text(a)); }
Value filter_upper(Bound& a) { return to_upper(text(a)); }
Value filter_safe(Bound& a) { return {text(a), true}; }
Value filter_string(Bound& a) { return a[0].is_string() ? a[0] : Value(text(a)); }
Value filter_title(Bound& a) { return title_words(text(a)); }

constexpr Builtin kFilters[] = {
    {"abs", "x", filter_abs},
    {"capitalize", "s", filter_capitalize},
    {"count", "value", filter_length},
    {"d", "value default_value? boolean?", filter_default},
    {"default", "value default_value? boolean?", filter_default},
    {"dictsort", "value case_sensitive? by? reverse?", filter_dictsort},
    {"e", "value", filter_escape},
    {"escape", "value", filter_escape},
    {"first", "seq", filter_first},
    {"float", "value default?", filter_float},
    {"format", "value *", filter_format},
    {"indent", "s width? first? blank?", filter_indent},
    {"int", "value default? base?", filter_int},
    {"items", "value", filter_items_of},
    {"join", "value d? attribute?", filter_join},
    {"last", "seq", filter_last},
    {"length", "value", filter_length},
    {"list", "value", filter_list},
    {"lower", "s", filter_lower},
    {"map", "value *", filter_map},
    {"max", "value case_sensitive? attribute?", filter_max},
    {"min", "value case_sensitive? attribute?", filter_min},
    {"reject", "value *", filter_reject},
    {"rejectattr", "value *", filter_rejectattr},
    {"replace", "s old new count?", filter_replace},
    {"reverse", "value", filter_reverse},
    {"round", "value precision? method?", filter_round},
    {"safe", "value", filter_safe},
    {"select", "value *", filter_select},
    {"selectattr", "value *", filter_selectattr},
    {"sort", "value reverse? case_sensitive? attribute?", filter_sort},
    {"string", "value", filter_string},
    {"sum", "iterable attribute? start?", filter_sum},
    {"title", "s", filter_title},
    {"tojson", "x ensure_ascii? indent? separators? sort_keys?", filter_tojson},
    {"trim", "value chars?", filter_trim},
    {"unique", "value case_sensitive? attribute?", filter_unique},
    {"upper", "s", filter_upper},
};

}  // namespace

const Builtin* find_filter(std::string_view name) {
  const auto* found = std::ranges::find(kFilters, name, &Builtin::name);
  return found == std::end(kFilters) ? nullptr : found;
}

}  // namespace nanovllm::jinja
