#include "nanovllm/text/jinja_value.h"

#include <algorithm>

#include "nanovllm/text/jinja_text.h"

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

int order(auto a, auto b) { return a < b ? -1 : a > b ? 1 : a == b ? 0 : 2; }

}  // namespace

Value Value::undefined(std::string why) {
  Value v;
  v.data_ = Undefined{std::make_shared<const std::string>(std::move(why))};
  return v;
}

bool Value::is_callable() const { return function() != nullptr || loop() != nullptr; }

const char* Value::type_name() const {
  if (is_undefined()) return "Undefined";
  if (is_none()) return "NoneType";
  if (is_bool()) return "bool";
  if (is_integer()) return "int";
  if (is_float()) return "float";
  if (is_string()) return is_markup() ? "Markup" : "str";
  if (dict() != nullptr) return "dict";
  if (space() != nullptr) return "Namespace";
  if (loop() != nullptr) return "LoopContext";
  if (function() != nullptr) return function()->macro != nullptr ? "Macro" : "function";
  if (sequence()->kind == Sequence::Kind::kView) return sequence()->name.c_str();
  constexpr const char* kNames[] = {"list", "tuple", "range", "view", "generator"};
  return kNames[static_cast<size_t>(sequence()->kind)];
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
  budget.step(static_cast<int64_t>(items.size() / 16));
  for (const auto& item : items)
    if (equal(item.first, key, budget)) return &item.second;
  return nullptr;
}

const Value* Dict::find(std::string_view key) const {
  for (const auto& item : items)
    if (item.first.is_string() && item.first.string() == key) return &item.second;
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

Value* Namespace::find(std::string_view name) {
  for (auto& attribute : attributes)
    if (attribute.first == name) return &attribute.second;
  return nullptr;
}

Value make_list(Values items, Budget& budget, Sequence::Kind kind, std::string name) {
  budget.build(sizeof(Sequence) + items.size() * sizeof(Value));
  int depth = 0;
  for (const Value& v : items) depth = std::max(depth, v.depth());
  return std::make_shared<const Sequence>(
      Sequence{kind, std::move(items), std::move(name), checked_depth(depth)});
}

Value make_tuple(Values items, Budget& budget) {
  return make_list(std::move(items), budget, Sequence::Kind::kTuple);
}

Value make_dict(Dict dict, Budget& budget) {
  budget.build(sizeof(Dict));
  return std::make_shared<const Dict>(std::move(dict));
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
  if (v.is_float()) return v.number() != 0;
  if (v.is_integer()) return v.integer() != 0;
  if (v.is_string()) return !v.string().empty();
  if (const Sequence* list = v.sequence())
    return list->kind == Sequence::Kind::kIterator || !list->items.empty();
  return v.dict() == nullptr || !v.dict()->items.empty();
}

size_t length(const Value& v, Budget& budget) {
  if (v.is_undefined()) return 0;
  if (v.is_string()) {
    budget.read(v.string().size());
    return count_code_points(v.string());
  }
  if (const Dict* dict = v.dict()) return dict->items.size();
  if (const Sequence* list = v.sequence();
      list != nullptr && list->kind != Sequence::Kind::kIterator)
    return list->items.size();
  raise("object of type '{}' has no len()", v.type_name());
}

bool is_iterable(const Value& v) {
  return v.is_undefined() || v.is_string() || v.sequence() != nullptr || v.dict() != nullptr ||
         v.loop() != nullptr;
}

Values to_list(const Value& v, Budget& budget) {
  Values items;
  if (const Sequence* list = v.sequence()) {
    const size_t first = list->kind == Sequence::Kind::kIterator ? list->next : 0;
    budget.build((list->items.size() - first) * sizeof(Value));
    items.assign(list->items.begin() + static_cast<ptrdiff_t>(first), list->items.end());
    list->next = list->items.size();
  } else if (const Dict* dict = v.dict()) {
    budget.build(dict->items.size() * sizeof(Value));
    for (const auto& item : dict->items) items.push_back(item.first);
  } else if (v.is_string()) {
    const std::string& s = v.string();
    budget.build(s.size() * (sizeof(Value) + sizeof(Text)));
    for (size_t i = 0; i < s.size();) {
      const size_t begin = i;
      next_code_point(s, i);
      items.emplace_back(s.substr(begin, i - begin));
    }
  } else if (!v.is_undefined()) {
    raise("'{}' object is not iterable", v.type_name());
  }
  budget.step(static_cast<int64_t>(items.size()) / 4);
  return items;
}

bool equal(const Value& a, const Value& b, Budget& budget) {
  budget.step();
  if (a.is_number() && b.is_number())
    return a.is_float() || b.is_float() ? a.number() == b.number() : a.integer() == b.integer();
  if (a.is_string() && b.is_string()) {
    if (a.string().size() != b.string().size()) return false;
    budget.read(a.string().size());
    return a.string() == b.string();
  }
  if (a.data().index() != b.data().index()) return false;
  const auto same = [&](const Value& v, const Value& w) { return equal(v, w, budget); };
  if (a.is_undefined() || a.is_none()) return true;
  if (const Sequence* x = a.sequence(), *y = b.sequence(); x != nullptr)
    return x == y ||
           (x->kind == y->kind && x->indexable() && std::ranges::equal(x->items, y->items, same));
  if (const Dict* x = a.dict(), *y = b.dict(); x != nullptr) {
    return x == y || (x->items.size() == y->items.size() &&
                      std::ranges::all_of(x->items, [&](const auto& item) {
                        const Value* other = y->find(item.first, budget);
                        return other != nullptr && same(item.second, *other);
                      }));
  }
  return a.function() == b.function() && a.space() == b.space() && a.loop() == b.loop();
}

int compare(const Value& a, const Value& b, std::string_view op, Budget& budget) {
  budget.step();
  if (a.is_number() && b.is_number())
    return a.is_float() || b.is_float() ? order(a.number(), b.number())
                                        : order(a.integer(), b.integer());
  if (a.is_string() && b.is_string()) {
    budget.read(std::min(a.string().size(), b.string().size()));
    return order(a.string().compare(b.string()), 0);  // UTF-8 orders as code points do
  }
  const Sequence *x = a.sequence(), *y = b.sequence();
  if (x != nullptr && y != nullptr && x->kind == y->kind && x->is_plain()) {
    for (size_t i = 0; i < std::min(x->items.size(), y->items.size()); ++i)
      if (!equal(x->items[i], y->items[i], budget))
        return compare(x->items[i], y->items[i], op, budget);
    return order(x->items.size(), y->items.size());
  }
  a.defined();
  b.defined();
  raise("'{}' not supported between instances of '{}' and '{}'", op, a.type_name(), b.type_name());
}

bool contains(const Value& container, const Value& item, Budget& budget) {
  if (container.is_string()) {
    if (!item.is_string())
      raise("'in <string>' requires string as left operand, not {}", item.type_name());
    budget.read(container.string().size());
    return find(container.string(), item.string()) != kNotFound;
  }
  if (const Dict* dict = container.dict()) return dict->find(item, budget) != nullptr;
  if (const Sequence* list = container.sequence()) {
    return std::ranges::any_of(list->items, [&](const Value& v) { return equal(v, item, budget); });
  }
  if (container.is_undefined()) return false;
  raise("argument of type '{}' is not iterable", container.type_name());
}

}  // namespace nanovllm::jinja
