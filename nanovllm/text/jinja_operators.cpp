#include <algorithm>
#include <cmath>
#include <limits>

#include "nanovllm/text/jinja_interpreter.h"
#include "nanovllm/text/jinja_text.h"

namespace nanovllm::jinja {

namespace {

[[noreturn]] void too_large() { raise("an integer does not fit into 128 bits"); }

[[noreturn]] void unsupported(std::string_view op, const Value& a, const Value& b) {
  raise("unsupported operand type(s) for {}: '{}' and '{}'", op, a.type_name(), b.type_name());
}

Int power(Int base, Int exponent) {
  Int result = 1;
  for (; exponent > 0; exponent >>= 1) {
    if ((exponent & 1) != 0 && __builtin_mul_overflow(result, base, &result)) too_large();
    if (exponent > 1 && __builtin_mul_overflow(base, base, &base)) too_large();
  }
  return result;
}

// Python rounds quotients down, and the remainder has the divisor's sign.
Int floor_divide(Int a, Int b) { return a / b - (a % b != 0 && (a < 0) != (b < 0) ? 1 : 0); }

double floor_modulo(double a, double b) {
  const double rest = std::fmod(a, b);
  if (rest == 0) return std::copysign(0.0, b);
  return (rest < 0) != (b < 0) ? rest + b : rest;
}

Value integer_arithmetic(char op, bool twice, Int a, Int b) {
  Int result = 0;
  switch (op) {
    case '+':
      if (__builtin_add_overflow(a, b, &result)) too_large();
      return result;
    case '-':
      if (__builtin_sub_overflow(a, b, &result)) too_large();
      return result;
    case '*':
      if (twice && a == 0 && b < 0) raise("0 cannot be raised to a negative power");
      if (twice)
        return b >= 0 ? Value(power(a, b))
                      : Value(std::pow(static_cast<double>(a), static_cast<double>(b)));
      if (__builtin_mul_overflow(a, b, &result)) too_large();
      return result;
    default:
      break;
  }
  if (b == 0) raise("division by zero");
  if (op == '/' && !twice) return static_cast<double>(a) / static_cast<double>(b);
  if (b == -1) return op == '%' ? Value(Int{0}) : integer_arithmetic('-', false, 0, a);
  return op == '%' ? a - floor_divide(a, b) * b : floor_divide(a, b);
}

Value float_arithmetic(char op, bool twice, double a, double b) {
  if (op == '+') return a + b;
  if (op == '-') return a - b;
  if (op == '*' && !twice) return a * b;
  if (op == '*') {
    if (a == 0 && b < 0) raise("0.0 cannot be raised to a negative power");
    return std::pow(a, b);
  }
  if (b == 0) raise("float division by zero");
  if (op == '%') return floor_modulo(a, b);
  return twice ? std::floor((a - floor_modulo(a, b)) / b + 0.5) : a / b;
}

// text + text where one of them is markup: the other is escaped.
Value concatenate(const Text& a, const Text& b, Budget& budget) {
  Writer out(budget);
  const bool markup = a.markup || b.markup;
  for (const Text* part : {&a, &b})
    out.add(markup && !part->markup ? escape_html(part->s) : part->s);
  return {out.take(), markup};
}

Value repeat(const Value& v, Int count, Budget& budget) {
  const size_t size = v.is_string() ? v.string().size() : v.sequence()->items.size();
  const bool fits = count < std::numeric_limits<int64_t>::max() / sizeof(Value);
  const auto times = count <= 0 || size == 0 ? 0
                     : fits                  ? static_cast<size_t>(count)
                                             : SIZE_MAX / sizeof(Value);
  if (v.is_string()) {
    Writer out(budget);
    out.fill(times, v.string());
    return out.take();
  }
  if (times > 0 && size > SIZE_MAX / sizeof(Value) / times) raise("a list is too long");
  budget.build(times * size * sizeof(Value));
  Values items;
  items.reserve(times * size);
  for (size_t i = 0; i < times; ++i)
    items.insert(items.end(), v.sequence()->items.begin(), v.sequence()->items.end());
  return make_list(std::move(items), budget, v.sequence()->kind);
}

bool is_list_or_tuple(const Value& v) {
  return v.sequence() != nullptr && v.sequence()->is_plain();
}

}  // namespace

Value binary(std::string_view op, const Value& a, const Value& b, Interpreter& interpreter) {
  Budget& budget = interpreter.budget();
  if (op == "%" && a.is_string()) {
    Args args;
    if (b.dict() != nullptr)
      for (const auto& [key, value] : b.dict()->items)
        args.named.emplace_back(to_string(key, budget), value);
    if (b.sequence() != nullptr && b.sequence()->kind == Sequence::Kind::kTuple)
      args.positional = b.sequence()->items;
    else args.positional.push_back(b);
    return format_percent(a.string(), args, budget);
  }
  a.defined();
  b.defined();
  const bool twice = op.size() == 2;
  if (a.is_number() && b.is_number())
    return a.is_float() || b.is_float()
               ? float_arithmetic(op[0], twice, a.number(), b.number())
               : integer_arithmetic(op[0], twice, a.integer(), b.integer());
  if (op == "+") {
    if (a.is_string() && b.is_string()) return concatenate(a.text(), b.text(), budget);
    if (is_list_or_tuple(a) && is_list_or_tuple(b) && a.sequence()->kind == b.sequence()->kind) {
      Values items = to_list(a, budget);
      const Values& more = b.sequence()->items;
      budget.build(more.size() * sizeof(Value));
      items.insert(items.end(), more.begin(), more.end());
      return make_list(std::move(items), budget, a.sequence()->kind);
    }
    if (a.is_string() && !a.is_markup())
      raise("can only concatenate str (not \"{}\") to str", b.type_name());
  }
  if (op == "*") {
    if ((a.is_string() || is_list_or_tuple(a)) && b.is_integer())
      return repeat(a, b.integer(), budget);
    if ((b.is_string() || is_list_or_tuple(b)) && a.is_integer())
      return repeat(b, a.integer(), budget);
  }
  unsupported(op, a, b);
}

Value negative(const Value& a) {
  if (!a.defined().is_number()) raise("bad operand type for unary -: '{}'", a.type_name());
  return a.is_float() ? Value(-a.number()) : integer_arithmetic('-', false, 0, a.integer());
}

Value slice(const Value& v, const Value& start, const Value& stop, const Value& step,
            Budget& budget) {
  v.defined();
  const Sequence* list = v.sequence();
  if (!v.is_string() && (list == nullptr || !list->indexable()))
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
  if (v.is_string()) {
    const std::string_view s = v.string();
    budget.build(s.size());
    if (by == 1) {
      const size_t first = byte_offset(s, static_cast<size_t>(begin));
      return s.substr(
          first, byte_offset(s.substr(first), static_cast<size_t>(std::max<Int>(end - begin, 0))));
    }
    std::vector<size_t> offsets;  // of each code point, and the end
    budget.build((static_cast<size_t>(size) + 1) * sizeof(size_t));
    for (size_t i = 0; i < s.size(); next_code_point(s, i)) offsets.push_back(i);
    offsets.push_back(s.size());
    std::string out;
    for (Int i = begin; by > 0 ? i < end : i > end; i += by) {
      const size_t first = offsets[static_cast<size_t>(i)];
      out += s.substr(first, offsets[static_cast<size_t>(i) + 1] - first);
    }
    return out;
  }
  budget.build(list->items.size() * sizeof(Value));
  Values items;
  for (Int i = begin; by > 0 ? i < end : i > end; i += by)
    items.push_back(list->items[static_cast<size_t>(i)]);
  return make_list(std::move(items), budget, list->kind, list->name);
}

}  // namespace nanovllm::jinja
