#include "nanovllm/text/jinja/value.h"

#include <algorithm>
#include <cmath>
#include <compare>

#include "nanovllm/text/jinja/builtins.h"
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

}  // namespace

std::string_view Value::type_name() const {
  constexpr std::string_view kSequences[] = {"list", "tuple", "range", "dict view", "generator"};
  if (const Sequence* list = sequence()) return kSequences[static_cast<size_t>(list->kind)];
  // The names are in the order of Data.
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
    // Most keys are texts of another length, which is compared so quickly that it counts as no
    // step.
    if (key.is_string() && other.is_string() && key.string().size() != other.string().size())
      continue;
    if (equal(key, other, budget)) return &value;
  }
  return nullptr;
}

void Dict::set(Value key, Value value, Budget& budget) {
  if (key.dict() != nullptr || is_kind(key, Sequence::Kind::kList))
    raise("unhashable type: '{}'", key.type_name());
  const Value* old = find(key, budget);
  if (old == nullptr) return add(std::move(key), std::move(value), budget);
  depth = std::max(depth, checked_depth(value.depth()));
  *const_cast<Value*>(old) = std::move(value);
}

void Dict::add(Value key, Value value, Budget& budget) {
  depth = std::max(depth, checked_depth(std::max(key.depth(), value.depth())));
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

bool truthy(const Value& v) {
  if (v.is_undefined() || v.is_none()) return false;
  if (v.is_number()) return v.number() != 0;
  if (v.is_string()) return !v.string().empty();
  if (is_kind(v, Sequence::Kind::kGenerator)) return true;
  if (const Sequence* list = v.sequence()) return !list->items.empty();
  return v.dict() == nullptr || !v.dict()->items.empty();
}

size_t length(const Value& v, Budget& budget) {
  if (v.is_undefined()) return 0;
  if (v.is_string()) {
    budget.read(v.string().size());
    return count_code_points(v.string());
  }
  if (const Dict* dict = v.dict()) return dict->items.size();
  if (v.sequence() != nullptr && !is_kind(v, Sequence::Kind::kGenerator))
    return v.sequence()->items.size();
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

namespace {

Int power(Int base, Int exponent) {
  Int result = 1;
  bool fits = true;
  for (; fits && exponent > 0; exponent >>= 1) {
    if ((exponent & 1) != 0) fits = !__builtin_mul_overflow(result, base, &result);
    if (exponent > 1) fits = fits && !__builtin_mul_overflow(base, base, &base);
  }
  if (!fits) raise("an integer does not fit into 128 bits");
  return result;
}

// Python rounds quotients down, and the remainder has the divisor's sign.
Int floor_divide(Int a, Int b) { return a / b - (a % b != 0 && (a < 0) != (b < 0) ? 1 : 0); }

double floor_modulo(double a, double b) {
  const double rest = std::fmod(a, b);
  if (rest == 0) return std::copysign(0.0, b);
  return (rest < 0) != (b < 0) ? rest + b : rest;
}

Value float_arithmetic(std::string_view op, double a, double b) {
  if (op == "+") return a + b;
  if (op == "-") return a - b;
  if (op == "*") return a * b;
  if (op == "**") {
    if (a == 0 && b < 0) raise("0.0 cannot be raised to a negative power");
    return std::pow(a, b);
  }
  if (b == 0) raise("float division by zero");
  if (op == "%") return floor_modulo(a, b);
  return op == "//" ? std::floor((a - floor_modulo(a, b)) / b + 0.5) : a / b;
}

Value integer_arithmetic(std::string_view op, Int a, Int b) {
  Int result = 0;
  if (op == "+" && !__builtin_add_overflow(a, b, &result)) return result;
  if (op == "-" && !__builtin_sub_overflow(a, b, &result)) return result;
  if (op == "*" && !__builtin_mul_overflow(a, b, &result)) return result;
  if (op == "+" || op == "-" || op == "*") raise("an integer does not fit into 128 bits");
  if (op == "**" && b >= 0) return power(a, b);
  if (op == "**" || op == "/")
    return float_arithmetic(op, static_cast<double>(a), static_cast<double>(b));
  if (b == 0) raise("division by zero");
  if (b == -1) return op == "%" ? Value(0) : integer_arithmetic("-", 0, a);  // may not fit
  return op == "%" ? a - floor_divide(a, b) * b : floor_divide(a, b);
}

bool is_plain_list(const Value& v) { return v.sequence() != nullptr && v.sequence()->is_plain(); }

bool are_alike(const Value& a, const Value& b) {
  return is_plain_list(a) && is_plain_list(b) && a.sequence()->kind == b.sequence()->kind;
}

/// A text or a list, repeated `count` times; empty if `count` is negative.
Value repeat(const Value& v, Int count, Budget& budget) {
  const size_t size =
      v.is_string() ? v.string().size() : v.sequence()->items.size() * sizeof(Value);
  const Int most = size == 0 ? 0 : Int{INT64_MAX} / static_cast<Int>(size);
  const auto times = static_cast<size_t>(std::clamp<Int>(count, 0, most));
  budget.build(times * size);
  std::string text;
  Values items;
  for (size_t i = 0; i < times; ++i) {
    if (v.is_string()) text += v.string();
    else items.insert(items.end(), v.sequence()->items.begin(), v.sequence()->items.end());
  }
  return v.is_string() ? Value(std::move(text))
                       : make_list(std::move(items), budget, v.sequence()->kind);
}

/// a + b of two texts, or of two lists of the same kind. If only one of the texts is markup, the
/// other one is escaped.
Value add(const Value& a, const Value& b, Budget& budget) {
  if (a.is_string() && b.is_string()) {
    const bool markup = a.is_markup() || b.is_markup();
    Writer out(budget);
    for (const Value* side : {&a, &b}) {
      if (markup && !side->is_markup()) add_escaped(out, side->string());
      else out.add(side->string());
    }
    return {out.take(), markup};
  }
  if (a.is_string()) raise("can only concatenate str (not \"{}\") to str", b.type_name());
  if (!are_alike(a, b))
    raise("unsupported operand type(s) for +: '{}' and '{}'", a.type_name(), b.type_name());
  Values items = to_list(a, budget);
  const Values more = to_list(b, budget);
  items.insert(items.end(), more.begin(), more.end());
  return make_list(std::move(items), budget, a.sequence()->kind);
}

std::partial_ordering order(const Value& a, const Value& b, Budget& budget) {
  budget.step();
  if (a.is_integer() && b.is_integer()) return a.integer() <=> b.integer();
  if (a.is_number() && b.is_number()) return a.number() <=> b.number();
  if (a.is_string() && b.is_string()) {
    budget.read(std::min(a.string().size(), b.string().size()));
    return a.string() <=> b.string();  // UTF-8 orders as code points do
  }
  if (are_alike(a, b)) {
    const Values &x = a.sequence()->items, &y = b.sequence()->items;
    for (size_t i = 0; i < std::min(x.size(), y.size()); ++i)
      if (!equal(x[i], y[i], budget)) return order(x[i], y[i], budget);
    return x.size() <=> y.size();
  }
  raise("no order between instances of '{}' and '{}'", a.defined().type_name(),
        b.defined().type_name());
}

bool contains(const Value& container, const Value& item, Budget& budget) {
  if (container.is_string()) {
    if (!item.is_string())
      raise("'in <string>' requires string as left operand, not {}", item.type_name());
    budget.read(container.string().size());
    return find_bytes(container.string(), item.string()) != kNotFound;
  }
  if (const Dict* dict = container.dict()) return dict->find(item, budget) != nullptr;
  if (const Sequence* list = container.sequence())
    return std::ranges::any_of(list->items, [&](const Value& v) { return equal(v, item, budget); });
  if (container.is_undefined()) return false;
  raise("argument of type '{}' is not iterable", container.type_name());
}

}  // namespace

Value binary(std::string_view op, const Value& a, const Value& b, Budget& budget) {
  if (op == "~") {
    Writer out(budget);
    write(out, a);
    write(out, b);
    return out.take();
  }
  if (op == "%" && a.is_string()) return format_percent(a.string(), b, budget);
  a.defined();
  b.defined();
  if (a.is_integer() && b.is_integer()) return integer_arithmetic(op, a.integer(), b.integer());
  if (a.is_number() && b.is_number()) return float_arithmetic(op, a.number(), b.number());
  if (op == "+") return add(a, b, budget);
  if (op == "*" && (a.is_string() || is_plain_list(a)) && b.is_integer())
    return repeat(a, b.integer(), budget);
  if (op == "*" && (b.is_string() || is_plain_list(b)) && a.is_integer())
    return repeat(b, a.integer(), budget);
  raise("unsupported operand type(s) for {}: '{}' and '{}'", op, a.type_name(), b.type_name());
}

Value negative(const Value& a) {
  if (!a.defined().is_number()) raise("bad operand type for unary -: '{}'", a.type_name());
  return a.is_float() ? Value(-a.number()) : integer_arithmetic("-", 0, a.integer());
}

Value slice(const Value& v, const Value& start, const Value& stop, const Value& step,
            Budget& budget) {
  const bool is_string = v.is_string();
  const Sequence* list = v.defined().sequence();
  if (!is_string && (list == nullptr || !list->is_indexable()))
    raise("'{}' object cannot be sliced", v.type_name());
  for (const Value* bound : {&start, &stop, &step})
    if (!bound->is_none() && !bound->is_integer())
      raise("slice indices must be integers or None, not {}", bound->type_name());
  const auto size = static_cast<Int>(length(v, budget));
  constexpr Int kFar = Int{1} << 64;
  const Int by = step.is_none() ? 1 : std::clamp(step.integer(), -kFar, kFar);
  if (by == 0) raise("slice step cannot be zero");
  const auto position = [&](const Value& bound, Int otherwise) {
    if (bound.is_none()) return otherwise;
    const Int at = bound.integer() < 0 ? bound.integer() + size : bound.integer();
    return by > 0 ? std::clamp<Int>(at, 0, size) : std::clamp<Int>(at, -1, size - 1);
  };
  const Int begin = position(start, by > 0 ? 0 : size - 1);
  const Int end = position(stop, by > 0 ? size : -1);
  if (is_string && by == 1) {
    const std::string_view from =
        std::string_view(v.string()).substr(byte_offset(v.string(), static_cast<size_t>(begin)));
    const auto count = static_cast<size_t>(std::max<Int>(end - begin, 0));
    return make_text(from.substr(0, byte_offset(from, count)), budget);
  }
  const Values characters = is_string ? to_list(v, budget) : Values();
  const Values& from = is_string ? characters : list->items;
  Values items;
  for (Int i = begin; by > 0 ? i < end : i > end; i += by) {
    budget.build(sizeof(Value));
    items.push_back(from[static_cast<size_t>(i)]);
  }
  if (list != nullptr) return make_list(std::move(items), budget, list->kind);
  Writer out(budget);
  for (const Value& c : items) out.add(c.string());
  return out.take();
}

bool equal(const Value& a, const Value& b, Budget& budget) {
  budget.step();
  if (a.is_integer() && b.is_integer()) return a.integer() == b.integer();
  if (a.is_number() && b.is_number()) return a.number() == b.number();
  if (a.data().index() != b.data().index()) return false;
  if (a.is_undefined() || a.is_none()) return true;
  if (a.is_string()) {
    if (a.string().size() == b.string().size()) budget.read(a.string().size());
    return a.string() == b.string();
  }
  const auto same = [&](const Value& v, const Value& w) { return equal(v, w, budget); };
  if (const Sequence* x = a.sequence(), *y = b.sequence(); x != nullptr)
    return x == y || (x->kind == y->kind && x->is_indexable() &&
                      std::ranges::equal(x->items, y->items, same));
  if (const Dict* x = a.dict(), *y = b.dict(); x != nullptr)
    return x == y || (x->items.size() == y->items.size() &&
                      std::ranges::all_of(x->items, [&](const auto& item) {
                        const Value* other = y->find(item.first, budget);
                        return other != nullptr && same(item.second, *other);
                      }));
  return a.function() == b.function() && a.space() == b.space() && a.loop() == b.loop();
}

bool less(const Value& a, const Value& b, Budget& budget) {
  return std::is_lt(order(a, b, budget));
}

bool compare(std::string_view op, const Value& a, const Value& b, Budget& budget) {
  budget.step();
  if (op == "==") return equal(a, b, budget);
  if (op == "!=") return !equal(a, b, budget);
  if (op == "in") return contains(b, a, budget);
  if (op == "not in") return !contains(b, a, budget);
  const std::partial_ordering found = order(a, b, budget);
  if (std::is_eq(found)) return op.size() == 2;
  return op[0] == '<' ? std::is_lt(found) : std::is_gt(found);
}

}  // namespace nanovllm::jinja
