#include <algorithm>
#include <cmath>
#include <compare>

#include "nanovllm/text/jinja/builtins.h"
#include "nanovllm/text/jinja/text.h"

// Arithmetic, slices and comparisons.
namespace nanovllm::jinja {

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

/// Of a text or a list.
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

/// Of texts, the plain one escaped where the other is markup, or of lists.
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

/// format % arguments
Value format(const std::string& format, const Value& arguments, Budget& budget) {
  Args args;
  if (arguments.dict() != nullptr) args.named = *arguments.dict();
  if (const Sequence* list = arguments.sequence(); list && list->kind == Sequence::Kind::kTuple)
    args.positional = list->items;
  else args.positional.push_back(arguments);
  args.charge(budget);
  budget.read(format.size());
  return format_percent(format, args, budget);
}

}  // namespace

Value binary(std::string_view op, const Value& a, const Value& b, Budget& budget) {
  if (op == "~") {
    Writer out(budget);
    write(out, a);
    write(out, b);
    return out.take();
  }
  if (op == "%" && a.is_string()) return format(a.string(), b, budget);
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
  const Sequence* list = v.defined().sequence();
  if (!v.is_string() && (list == nullptr || !list->is_indexable()))
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
  if (v.is_string() && by == 1) {
    const std::string_view from =
        std::string_view(v.string()).substr(byte_offset(v.string(), static_cast<size_t>(begin)));
    const auto count = static_cast<size_t>(std::max<Int>(end - begin, 0));
    return make_text(from.substr(0, byte_offset(from, count)), budget);
  }
  const Values characters = v.is_string() ? to_list(v, budget) : Values();
  const Values& from = v.is_string() ? characters : list->items;
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
