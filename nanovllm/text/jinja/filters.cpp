#include <algorithm>
#include <cmath>

#include "nanovllm/text/jinja/builtins.h"
#include "nanovllm/text/jinja/text.h"

namespace nanovllm::jinja {

namespace {

Value generator(Values items, Bound& a) {
  return make_list(std::move(items), a.budget, Sequence::Kind::kGenerator);
}

bool is_generator(const Value& v) { return is_kind(v, Sequence::Kind::kGenerator); }

/// Finds the value that a filter compares or selects: an item itself or, with an attribute such as
/// "a.0.b", that attribute of the item. A number is an attribute of one part. With `lower` texts
/// become lower case, so that comparisons ignore case.
class Key {
 public:
  Key(Bound& a, const Value& attribute, bool lower = false)
      : interpreter_(a.interpreter), lower_(lower) {
    if (!attribute.is_string() && !attribute.is_none()) path_.push_back(attribute);
    if (!attribute.is_string()) return;
    a.budget.read(attribute.string().size());
    for (const std::string_view part : split(attribute.string(), ".")) {
      a.budget.build_text(part.size());
      const std::optional<Int> index = parse_integer(part);
      path_.push_back(index ? Value(*index) : Value(part));
    }
  }
  /// Uses the attribute that the filter's argument number `i` names.
  Key(Bound& a, size_t i, bool lower = false) : Key(a, a.has(i) ? a[i] : Value(None{}), lower) {}

  Value operator()(Value item, const Value& otherwise = None{}) const {
    interpreter_.budget.step(path_.size());
    for (const Value& key : path_) {
      item = interpreter_.item(item, key);
      if (item.is_undefined() && !otherwise.is_none()) item = otherwise;
    }
    if (!lower_ || !item.is_string()) return item;
    interpreter_.budget.build_text(item.string().size());
    return change_case(item.string(), Capitals::kNone);
  }

 private:
  Interpreter& interpreter_;
  Values path_;
  bool lower_;
};

/// Sorts the items by the lists of their keys, which are computed once. Equal items keep their
/// order.
Value sort_by(Values items, const std::vector<Key>& keys, bool reverse, Budget& budget) {
  std::vector<std::pair<Value, Value>> keyed;
  budget.build(items.size() * 2 * sizeof(Value));
  for (Value& item : items) {
    Values values;
    for (const Key& key : keys) values.push_back(key(item));
    keyed.emplace_back(make_list(std::move(values), budget), std::move(item));
  }
  std::ranges::stable_sort(keyed, [&](const auto& x, const auto& y) {
    return less((reverse ? y : x).first, (reverse ? x : y).first, budget);
  });
  for (size_t i = 0; i < items.size(); ++i) items[i] = std::move(keyed[i].second);
  return make_list(std::move(items), budget);
}

Value sort(Bound& a) {  // value reverse case_sensitive attribute
  std::vector<Key> keys;
  if (a.has(3) && a[3].is_string())
    for (const std::string_view part : split(a.string(3), ","))
      keys.emplace_back(a, make_text(part, a.budget), !a.flag(2));
  else keys.emplace_back(a, 3, !a.flag(2));
  return sort_by(a.list(), keys, a.flag(1), a.budget);
}

Values pairs_of(const Dict& dict, Budget& budget) {
  Values pairs;
  for (const auto& [key, value] : dict.items) pairs.push_back(make_tuple({key, value}, budget));
  return pairs;
}

Value dictsort(Bound& a) {  // value case_sensitive by reverse
  const Dict* dict = a[0].defined().dict();
  if (dict == nullptr) raise("dictsort needs a mapping, not {}", a[0].type_name());
  const std::string by = a.has(2) ? a.string(2) : "key";
  if (by != "key" && by != "value") raise("dictsort sorts by either \"key\" or \"value\"");
  const Key key(a, Value(by == "key" ? 0 : 1), !a.flag(1));
  return sort_by(pairs_of(*dict, a.budget), {key}, a.flag(3), a.budget);
}

Value unique(Bound& a) {  // value case_sensitive attribute
  const Key key(a, 2, !a.flag(1));
  Values seen, items;
  for (const Value& item : a.list()) {
    Value k = key(item);
    if (std::ranges::any_of(seen, [&](const Value& s) { return equal(s, k, a.budget); })) continue;
    seen.push_back(std::move(k));
    items.push_back(item);
  }
  return generator(std::move(items), a);
}

template <bool kMax>
Value extreme(Bound& a) {  // value case_sensitive attribute
  const Key key(a, 2, !a.flag(1));
  const Values items = a.list();
  if (items.empty()) return a.interpreter.undefined("No aggregated item, sequence was empty.");
  const Value* best = &items[0];
  for (const Value& item : items)
    if (less(key(kMax ? *best : item), key(kMax ? item : *best), a.budget)) best = &item;
  return *best;
}

Value sum(Bound& a) {  // iterable attribute start
  const Key key(a, 1);
  Value total = a.has(2) ? a[2] : Value(0);
  for (const Value& item : a.list()) total = binary("+", total, key(item), a.budget);
  return total;
}

const Builtin& require_known(std::string_view kind, const Value& name, Bound& a) {
  const Builtin* found = find_builtin(kind, to_string(name, a.budget));
  if (found == nullptr) raise("no {} named {}", kind, repr(name, a.budget));
  return *found;
}

/// Applies a filter or test to an item, with the arguments that follow its name in `rest`.
Value apply(const Builtin& builtin, Value item, Args rest, Bound& a) {
  rest.positional[0] = std::move(item);
  return a.interpreter.call(builtin, std::move(rest));
}

Value map(Bound& a) {  // value *
  if (!truthy(a[0])) return generator({}, a);
  Values items = a.list();
  if (a.rest.positional.empty()) {
    const Builtin by_name = {"filter", "map", "attribute default?", nullptr};
    const Bound named(by_name, a.interpreter, a.rest);
    const Key key(a, named[0]);
    for (Value& item : items) item = key(item, named.has(1) ? named[1] : Value(None{}));
  } else {
    const Builtin& filter = require_known("filter", a.rest.positional[0], a);
    for (Value& item : items) item = apply(filter, std::move(item), a.rest, a);
  }
  return generator(std::move(items), a);
}

/// The filters select and reject, which test the item, and selectattr and rejectattr, which test an
/// attribute of it. The default test is whether it is true.
template <bool kWanted, bool kByAttribute>
Value choose(Bound& a) {  // value *
  if (!truthy(a[0])) return generator({}, a);
  Args rest = a.rest;
  Value attribute = None{};
  if (kByAttribute) {
    if (rest.positional.empty()) raise("missing parameter for attribute name");
    attribute = rest.positional[0];
    rest.positional.erase(rest.positional.begin());
  }
  const Key key(a, attribute);
  const Builtin* test =
      rest.positional.empty() ? nullptr : &require_known("test", rest.positional[0], a);
  Values chosen;
  for (Value& item : a.list()) {
    Value v = key(item);
    if (test != nullptr) v = apply(*test, std::move(v), rest, a);
    if (truthy(v) == kWanted) chosen.push_back(std::move(item));
  }
  return generator(std::move(chosen), a);
}

Value first(Bound& a) {
  const Sequence* list = a[0].sequence();
  if (list != nullptr && list->next < list->items.size()) {
    const Value& item = list->items[list->next];
    if (is_generator(a[0])) ++list->next;
    return item;
  }
  const Values items = a.list();
  return items.empty() ? a.interpreter.undefined("No first item, sequence was empty.")
                       : items.front();
}

Value last(Bound& a) {
  if (is_generator(a[0])) raise("'generator' object is not reversible");
  const Values items = a.list();
  return items.empty() ? a.interpreter.undefined("No last item, sequence was empty.")
                       : items.back();
}

Value reverse(Bound& a) {
  if (a[0].is_string()) return slice(a[0], None{}, None{}, -1, a.budget);
  Values items = a.list();
  std::ranges::reverse(items);
  return is_generator(a[0]) ? make_list(std::move(items), a.budget)
                            : generator(std::move(items), a);
}

Value items(Bound& a) {
  if (a[0].is_undefined()) return generator({}, a);
  if (a[0].dict() == nullptr) raise("items: can only get item pairs from a mapping");
  return generator(pairs_of(*a[0].dict(), a.budget), a);
}

Value join(Bound& a) {  // value d attribute
  const Key key(a, 2);
  const std::string separator = a.has(1) ? a.text(1) : "";
  Writer out(a.budget);
  for (bool first = true; const Value& item : a.list()) {
    if (!std::exchange(first, false)) out.add(separator);
    write(out, key(item));
  }
  return out.take();
}

/// Argument `i` as an indentation: a number means that many spaces, a text means itself.
std::string indentation(Bound& a, size_t i, int64_t otherwise) {
  if (a.has(i) && a[i].is_string()) return a.string(i);
  return std::string(static_cast<size_t>(std::clamp<int64_t>(a.integer(i, otherwise), 0, 1000)),
                     ' ');
}

Value indent(Bound& a) {  // s width first blank
  const std::string lines = a.string(0) + "\n";
  const std::string spaces = indentation(a, 1, 4);
  Writer out(a.budget);
  if (a.flag(2)) out.add(spaces);
  for (bool first = true; const std::string_view line : split_lines(lines)) {
    if (!first) out.add("\n");
    if (!first && (!line.empty() || a.flag(3))) out.add(spaces);
    out.add(line);
    first = false;
  }
  return out.take();
}

Value tojson(Bound& a) {  // x ensure_ascii? indent? separators? sort_keys?
  PrintStyle style{.json = true, .ensure_ascii = a.flag(1), .sort_keys = a.flag(4)};
  if (a.has(2)) {
    style.pretty = true;
    style.item_separator = ",";
    style.indent = indentation(a, 2, 0);
  }
  if (a.has(3)) {
    const Values pair = a.list(3);
    if (pair.size() != 2 || !pair[0].is_string() || !pair[1].is_string())
      raise("tojson: separators must be two strings");
    a.budget.read(pair[0].string().size() + pair[1].string().size());
    style.item_separator = pair[0].string();
    style.key_separator = pair[1].string();
  }
  return print(a[0], style, a.budget);
}

Value escape(Bound& a) {
  if (a[0].is_markup()) return a[0];
  Writer out(a.budget);
  add_escaped(out, a.text());
  return {out.take(), true};
}

Value use_default(Bound& a) {  // value default_value boolean
  const bool keep = a.flag(2) ? truthy(a[0]) : !a[0].is_undefined();
  return keep ? a[0] : a[1].is_undefined() ? Value("") : a[1];
}

Value to_int(Bound& a) {  // value default base
  const Value& v = a[0].defined();
  Value otherwise = a.has(1) ? a[1] : Value(0);
  if (v.is_integer()) return v.integer();
  if (v.is_string())
    if (const auto i = parse_integer(a.string(0), static_cast<int>(a.integer(2, 10)))) return *i;
  std::optional<double> d;
  if (v.is_string()) d = parse_float(a.string(0));
  if (v.is_float()) d = v.number();
  if (!d || std::isnan(*d) || (v.is_string() && std::isinf(*d))) return otherwise;
  if (std::fabs(*d) > 1e38) raise("cannot convert {} to an integer", float_repr(*d));
  return static_cast<Int>(*d);
}

Value to_float(Bound& a) {  // value default
  const Value& v = a[0].defined();
  if (v.is_number()) return v.number();
  if (v.is_string())
    if (const auto d = parse_float(a.string(0))) return *d;
  return a.has(1) ? a[1] : Value(0.0);
}

Value round(Bound& a) {  // value precision method
  const Value& v = a[0].defined();
  if (!v.is_number()) raise("type {} doesn't define __round__ method", v.type_name());
  const std::string method = a.has(2) ? a.string(2) : "common";
  const int64_t precision = std::clamp<int64_t>(a.integer(1), -300, 300);
  const double scale = std::pow(10.0, static_cast<double>(precision));
  if (method == "ceil") return std::ceil(v.number() * scale) / scale;
  if (method == "floor") return std::floor(v.number() * scale) / scale;
  if (method != "common") raise("method must be common, ceil or floor");
  if (v.is_integer() && precision >= 0) return v.integer();
  // Printing rounds the exact value, half to even, as Python does. It takes a while, and large
  // values have no fraction.
  if (precision >= 0 && std::fabs(v.number()) >= 1e16) return v.number();
  a.budget.step(100);
  if (precision >= 0) return *parse_float(fmt::format("{:.{}f}", v.number(), precision));
  const double rounded = std::nearbyint(v.number() * scale) / scale;
  return v.is_integer() ? Value(static_cast<Int>(rounded)) : Value(rounded);
}

Value absolute(Bound& a) {
  const Value opposite = negative(a[0]);
  return std::signbit(a[0].number()) ? opposite : negative(opposite);
}

Value to_text(Bound& a) { return a[0].is_string() ? a[0] : Value(a.text()); }

constexpr Builtin kFilters[] = {
    {"filter", "abs", "x", absolute},
    {"filter", "d default", "value default_value? boolean?", use_default},
    {"filter", "dictsort", "value case_sensitive? by? reverse?", dictsort},
    {"filter", "e escape", "value", escape},
    {"filter", "first", "seq", first},
    {"filter", "float", "value default?", to_float},
    {"filter", "format", "value *",
     [](Bound& a) -> Value { return format_percent(a.text(), a.rest, a.budget); }},
    {"filter", "indent", "s width? first? blank?", indent},
    {"filter", "int", "value default? base?", to_int},
    {"filter", "items", "value", items},
    {"filter", "join", "value d? attribute?", join},
    {"filter", "last", "seq", last},
    {"filter", "count length", "value", [](Bound& a) -> Value { return length(a[0], a.budget); }},
    {"filter", "list", "value", [](Bound& a) { return make_list(a.list(), a.budget); }},
    {"filter", "map", "value *", map},
    {"filter", "max", "value case_sensitive? attribute?", extreme<true>},
    {"filter", "min", "value case_sensitive? attribute?", extreme<false>},
    {"filter", "reject", "value *", choose<false, false>},
    {"filter", "rejectattr", "value *", choose<false, true>},
    {"filter", "reverse", "value", reverse},
    {"filter", "round", "value precision? method?", round},
    {"filter", "safe", "value",
     [](Bound& a) -> Value {
       return {a.text(), /*markup=*/true};
     }},
    {"filter", "select", "value *", choose<true, false>},
    {"filter", "selectattr", "value *", choose<true, true>},
    {"filter", "sort", "value reverse? case_sensitive? attribute?", sort},
    {"filter", "string", "value", to_text},
    {"filter", "sum", "iterable attribute? start?", sum},
    {"filter", "tojson", "x ensure_ascii? indent? separators? sort_keys?", tojson},
    {"filter", "unique", "value case_sensitive? attribute?", unique},
};

}  // namespace

std::span<const Builtin> filters() { return kFilters; }

}  // namespace nanovllm::jinja
