#include <charconv>
#include <cmath>
#include <cstdlib>

#include "nanovllm/text/jinja_builtins.h"
#include "nanovllm/text/jinja_interpreter.h"
#include "nanovllm/text/jinja_text.h"

// Reading numbers, and the filters that make them.
namespace nanovllm::jinja {

std::optional<Int> parse_integer(std::string_view text, int base) {
  text = strip(text);
  const bool is_negative = text.starts_with('-');
  if (is_negative || text.starts_with('+')) text.remove_prefix(1);
  if (base == 16 && (text.starts_with("0x") || text.starts_with("0X"))) text.remove_prefix(2);
  Int value = 0;
  for (const char c : text) {
    const auto u = static_cast<unsigned char>(c);
    const int digit = std::isdigit(u) != 0   ? c - '0'
                      : std::isalpha(u) != 0 ? (c | 0x20) - 'a' + 10
                                             : base;
    if (digit >= base) return std::nullopt;
    if (__builtin_mul_overflow(value, base, &value) || __builtin_add_overflow(value, digit, &value))
      raise("an integer does not fit into 128 bits");
  }
  if (text.empty()) return std::nullopt;
  return is_negative ? -value : value;
}

std::optional<double> parse_float(std::string_view text) {
  text = strip(text);
  if (text.starts_with('+') && !text.starts_with("+-")) text.remove_prefix(1);
  double value = 0;
  const auto [last, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (last != text.data() + text.size() || error == std::errc::invalid_argument ||
      text.ends_with(')'))
    return std::nullopt;
  // Too large or too small: infinity or zero, as strtod has it.
  return error == std::errc() ? value : std::strtod(std::string(text).c_str(), nullptr);
}

Value filter_int(Bound& a) {  // value default base
  const Value& v = a[0].defined();
  Value otherwise = a.has(1) ? a[1] : Value(0);
  if (v.is_integer()) return v.integer();
  if (v.is_string())
    if (const auto i = parse_integer(v.string(), static_cast<int>(a.integer(2, 10)))) return *i;
  const std::optional<double> d = v.is_string()  ? parse_float(v.string())
                                  : v.is_float() ? std::optional(v.number())
                                                 : std::nullopt;
  if (!d || std::isnan(*d) || (v.is_string() && std::isinf(*d))) return otherwise;
  if (std::fabs(*d) > 1e38) raise("cannot convert {} to an integer", float_repr(*d));
  return static_cast<Int>(*d);
}

Value filter_float(Bound& a) {  // value default
  const Value& v = a[0].defined();
  if (v.is_number()) return v.number();
  if (v.is_string())
    if (const auto d = parse_float(v.string())) return *d;
  return a.has(1) ? a[1] : Value(0.0);
}

Value filter_round(Bound& a) {  // value precision method
  const Value& v = a[0].defined();
  if (!v.is_number()) raise("type {} doesn't define __round__ method", v.type_name());
  const std::string method = a.has(2) ? a.string(2) : "common";
  const int64_t precision = std::clamp<int64_t>(a.integer(1), -300, 300);
  const double scale = std::pow(10.0, static_cast<double>(precision));
  if (method == "ceil") return std::ceil(v.number() * scale) / scale;
  if (method == "floor") return std::floor(v.number() * scale) / scale;
  if (method != "common") raise("method must be common, ceil or floor");
  if (v.is_integer() && precision >= 0) return v.integer();
  // Printing rounds the exact value, half to even, as Python does.
  if (precision >= 0) return *parse_float(fmt::format("{:.{}f}", v.number(), precision));
  const double rounded = std::nearbyint(v.number() * scale) / scale;
  return v.is_integer() ? Value(static_cast<Int>(rounded)) : Value(rounded);
}

Value filter_abs(Bound& a) {
  const bool is_negative = a[0].defined().is_number() && a[0].number() < 0;
  return is_negative ? negative(a[0]) : negative(negative(a[0]));
}

}  // namespace nanovllm::jinja
