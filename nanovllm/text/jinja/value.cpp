#include "nanovllm/text/jinja/value.h"

#include <algorithm>

#include "nanovllm/text/jinja/interpreter.h"
#include "nanovllm/text/jinja/text.h"

namespace nanovllm::jinja {

namespace {

// Printing, comparing and freeing values recurse. Also how deep parse_json() lets the caller's
// values be.
constexpr int kMaxDepth = 250;

int checked_depth(int inner) {
  if (inner >= kMaxDepth) raise("a value is nested deeper than {} levels", kMaxDepth);
  return inner + 1;
}

// Everything that reads a text relies on it.
void require_utf8(std::string_view s) {
  if (!is_utf8(s)) raise("a variable holds a text that is not UTF-8");
}

}  // namespace

Value Value::undefined(std::string why, Budget& budget) {
  budget.build_text(why.size());
  Value v;
  v.data_ = Undefined{std::make_shared<const std::string>(std::move(why))};
  return v;
}

std::string_view Value::type_name() const {
  if (const Sequence* list = sequence()) {
    constexpr std::string_view kNames[] = {"list",        "tuple",      "range",    "dict_keys",
                                           "dict_values", "dict_items", "generator"};
    return kNames[static_cast<size_t>(list->kind)];
  }
  constexpr std::string_view kNames[] = {"Undefined", "NoneType",  "bool",       "int",
                                         "float",     "str",       "",           "dict",
                                         "function",  "Namespace", "LoopContext"};
  return kNames[data_.index()];
}

const Value& Value::defined() const {
  if (const auto* u = std::get_if<Undefined>(&data_))
    throw TemplateError(u->why == nullptr ? "a value is undefined" : *u->why);
  return *this;
}

int Value::depth() const {
  if (const Sequence* list = sequence()) return list->depth;
  if (const Dict* d = dict()) return d->depth;
  if (const Function* f = function()) return f->self.depth();
  return 0;
}

const Value* Dict::find(const Value& key, Budget& budget) const {
  if (key.is_string()) return find(std::string_view(key.string()), budget);
  budget.step(items.size() / 16);
  for (const auto& item : items)
    if (equal(item.first, key, budget)) return &item.second;
  return nullptr;
}

const Value* Dict::find(std::string_view key, Budget& budget) const {
  // Keys of one length may differ in their last byte only.
  size_t num_read = items.size();
  const Value* found = nullptr;
  for (const auto& item : items) {
    if (!item.first.is_string() || item.first.string().size() != key.size()) continue;
    num_read += key.size();
    if (item.first.string() == key) found = &item.second;
    if (found != nullptr) break;
  }
  budget.read(num_read);
  return found;
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

Value from_json(const Json& json, Budget& budget) {
  switch (json.type()) {
    case Json::value_t::null:
      return None{};
    case Json::value_t::boolean:
      return json.get<bool>();
    case Json::value_t::number_integer:
      return json.get<int64_t>();
    case Json::value_t::number_unsigned:
      return static_cast<Int>(json.get<uint64_t>());
    case Json::value_t::number_float:
      return json.get<double>();
    case Json::value_t::string: {
      const auto& s = json.get_ref<const std::string&>();
      require_utf8(s);
      budget.build(s.size());
      return s;
    }
    case Json::value_t::array: {
      Values items;
      items.reserve(json.size());
      for (const Json& item : json) items.push_back(from_json(item, budget));
      return make_list(std::move(items), budget);
    }
    case Json::value_t::object: {
      // Keys are distinct already: no lookups.
      Dict dict;
      dict.items.reserve(json.size());
      for (const auto& [key, item] : json.items()) {
        Value value = from_json(item, budget);
        require_utf8(key);
        budget.build(key.size() + 2 * sizeof(Value));
        dict.depth = std::max(dict.depth, checked_depth(value.depth()));
        dict.items.emplace_back(key, std::move(value));
      }
      return make_dict(std::move(dict), budget);
    }
    default:
      raise("a variable is neither null, a boolean, a number, a text, a list nor an object");
  }
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
    const std::string& s = v.string();
    budget.build(count_code_points(s) * sizeof(Value));
    for (size_t i = 0; i < s.size();) {
      const size_t begin = i;
      next_code_point(s, i);
      items.push_back(make_text(std::string_view(s).substr(begin, i - begin), budget));
    }
  } else if (!v.is_undefined()) {
    raise("'{}' object is not iterable", v.type_name());
  }
  budget.step(items.size() / 4);
  return items;
}

}  // namespace nanovllm::jinja
