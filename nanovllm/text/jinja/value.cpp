#include "nanovllm/text/jinja/value.h"

#include <algorithm>

#include "nanovllm/text/jinja/interpreter.h"
#include "nanovllm/text/jinja/text.h"

namespace nanovllm::jinja {

namespace {

// Printing, comparing and freeing values recurse. parse_json() lets the caller's values be
// 200 levels deep.
constexpr int kMaxDepth = 250;

int checked_depth(int inner) {
  if (inner >= kMaxDepth) raise("a value is nested deeper than {} levels", kMaxDepth);
  return inner + 1;
}

/// A text of a variable. Everything that reads texts relies on well-formed UTF-8.
Value text_from_json(const std::string& s, Budget& budget) {
  if (!is_utf8(s)) raise("a variable holds a text that is not UTF-8");
  budget.grow(s.size());
  budget.build(s.size());
  return s;
}

}  // namespace

std::string_view Value::type_name() const {
  constexpr std::string_view kSequences[] = {"list", "tuple", "range", "dict view", "generator"};
  if (const Sequence* list = sequence()) return kSequences[static_cast<size_t>(list->kind)];
  // In the order of Data.
  constexpr std::string_view kNames[] = {"Undefined", "NoneType",  "bool",       "int",
                                         "float",     "str",       "",           "dict",
                                         "function",  "Namespace", "LoopContext"};
  return kNames[data_.index()];
}

const Value& Value::defined() const {
  if (const auto* undefined = std::get_if<Undefined>(&data_))
    raise("{}", undefined->why == nullptr ? "a value is undefined" : *undefined->why);
  return *this;
}

int Value::depth() const {
  if (const Sequence* list = sequence()) return list->depth;
  if (const Dict* d = dict()) return d->depth;
  if (const Function* f = function()) return f->self.depth();
  return 0;
}

const Value* Dict::find(const Value& key, Budget& budget) const {
  budget.step(items.size() / 16);
  for (const auto& [other, value] : items) {
    // Most keys are texts of another length: too cheap to compare for a step each.
    if (key.is_string() && other.is_string() && key.string().size() != other.string().size())
      continue;
    if (equal(key, other, budget)) return &value;
  }
  return nullptr;
}

void Dict::set(Value key, Value value, Budget& budget) {
  if (const Sequence* list = key.sequence();
      key.dict() != nullptr || (list != nullptr && list->kind == Sequence::Kind::kList))
    raise("unhashable type: '{}'", key.type_name());
  depth = std::max(depth, checked_depth(std::max(key.depth(), value.depth())));
  if (const Value* old = find(key, budget)) {
    *const_cast<Value*>(old) = std::move(value);
    return;
  }
  budget.build(2 * sizeof(Value));
  items.emplace_back(std::move(key), std::move(value));
}

Value make_list(Values items, Budget& budget, Sequence::Kind kind) {
  budget.build(sizeof(Sequence) + items.size() * sizeof(Value));
  int depth = 0;
  for (const Value& v : items) depth = std::max(depth, v.depth());
  return std::make_shared<const Sequence>(Sequence{kind, std::move(items), checked_depth(depth)});
}

Value make_tuple(Values items, Budget& budget) {
  return make_list(std::move(items), budget, Sequence::Kind::kTuple);
}

Value make_dict(Dict dict, Budget& budget) {
  budget.build(sizeof(Dict));
  return std::make_shared<const Dict>(std::move(dict));
}

Value make_text(std::string_view text, Budget& budget) {
  budget.build_text(text.size());
  return text;
}

Value make_function(Function function, Budget& budget) {
  budget.build(sizeof(Function) + sizeof(Value));
  return std::make_shared<const Function>(std::move(function));
}

Value make_undefined(std::string why, Budget& budget) {
  budget.build_text(why.size());
  return Undefined{std::make_shared<const std::string>(std::move(why))};
}

Value from_json(const Json& json, Budget& budget) {
  budget.grow(16);
  if (json.is_null()) return None{};
  if (json.is_boolean()) return json.get<bool>();
  if (json.is_number_unsigned()) return json.get<uint64_t>();
  if (json.is_number_integer()) return json.get<int64_t>();
  if (json.is_number_float()) return json.get<double>();
  if (json.is_string()) return text_from_json(json.get_ref<const std::string&>(), budget);
  if (json.is_array()) {
    Values items;
    items.reserve(json.size());
    for (const Json& item : json) items.push_back(from_json(item, budget));
    return make_list(std::move(items), budget);
  }
  if (!json.is_object()) raise("a variable is of a type that JSON does not have");
  // JSON's keys are distinct already, so nothing is looked up.
  Dict dict;
  dict.items.reserve(json.size());
  for (const auto& [key, item] : json.items()) {
    Value value = from_json(item, budget);
    budget.build(2 * sizeof(Value));
    dict.depth = std::max(dict.depth, checked_depth(value.depth()));
    dict.items.emplace_back(text_from_json(key, budget), std::move(value));
  }
  return make_dict(std::move(dict), budget);
}

bool truthy(const Value& v) {
  if (v.is_undefined() || v.is_none()) return false;
  if (v.is_number()) return v.number() != 0;
  if (v.is_string()) return !v.string().empty();
  if (const Sequence* list = v.sequence())
    return list->kind == Sequence::Kind::kGenerator || !list->items.empty();
  return v.dict() == nullptr || !v.dict()->items.empty();
}

size_t length(const Value& v, Budget& budget) {
  if (v.is_undefined()) return 0;
  if (v.is_string()) {
    budget.read(v.string().size());
    return count_code_points(v.string());
  }
  if (const Dict* dict = v.dict()) return dict->items.size();
  if (const Sequence* list = v.sequence(); list && list->kind != Sequence::Kind::kGenerator)
    return list->items.size();
  raise("object of type '{}' has no len()", v.type_name());
}

Values to_list(const Value& v, Budget& budget) {
  Values items;
  if (const Sequence* list = v.sequence()) {
    budget.build((list->items.size() - list->next) * sizeof(Value));
    items.assign(list->items.begin() + static_cast<ptrdiff_t>(list->next), list->items.end());
    if (list->kind == Sequence::Kind::kGenerator) list->next = list->items.size();
  } else if (const Dict* dict = v.dict()) {
    budget.build(dict->items.size() * sizeof(Value));
    for (const auto& item : dict->items) items.push_back(item.first);
  } else if (v.is_string()) {
    const std::string_view s = v.string();
    budget.build(count_code_points(s) * sizeof(Value));
    for (size_t i = 0; i < s.size();) {
      const size_t begin = i;
      next_code_point(s, i);
      items.push_back(make_text(s.substr(begin, i - begin), budget));
    }
  } else if (!v.is_undefined()) {
    raise("'{}' object is not iterable", v.type_name());
  }
  budget.step(items.size() / 4);
  return items;
}

}  // namespace nanovllm::jinja
