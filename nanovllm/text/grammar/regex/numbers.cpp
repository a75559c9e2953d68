#include "nanovllm/text/grammar/regex/numbers.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <numeric>
#include <string_view>
#include <utility>
#include <vector>

#include "nanovllm/base/check.h"
#include "nanovllm/text/grammar/regex/regex.h"

namespace nanovllm::grammar {

namespace {

constexpr int64_t kMaxDigits = 400;  // the largest double has 309
// To see whether digits can still become a multiple, derive() passes the remainders one by one.
constexpr uint64_t kMaxDivisor = 2000;
constexpr size_t kMaxScale = 10;

// A decimal number with all its digits. Both parts are empty for zero.
struct Decimal {
  bool is_negative = false;
  std::string whole;     // no leading zeros
  std::string fraction;  // no zeros at the end

  bool is_zero() const { return whole.empty() && fraction.empty(); }
  bool magnitude_less(const Decimal& other) const {
    if (whole.size() != other.whole.size()) return whole.size() < other.whole.size();
    return whole != other.whole ? whole < other.whole : fraction < other.fraction;
  }
  bool operator==(const Decimal&) const = default;
};

Decimal parse_decimal(std::string_view text, const std::string& where) {
  constexpr std::string_view kDigits = "0123456789";
  Decimal out;
  out.is_negative = text.starts_with('-');
  const size_t e = std::min(text.find_first_of("eE"), text.size());
  std::string digits(text.substr(out.is_negative, e - out.is_negative));
  const size_t num_before_point = std::min(digits.find('.'), digits.size());
  bool is_number = num_before_point > 0 && digits.back() != '.';
  digits.erase(num_before_point, 1);
  is_number = is_number && digits.find_first_not_of(kDigits) == std::string::npos;
  int64_t exponent = 0;
  if (e < text.size()) {
    std::string_view number = text.substr(e + 1);
    if (number.starts_with('+')) number.remove_prefix(1);
    const auto error = std::from_chars(number.begin(), number.end(), exponent).ec;
    is_number = is_number && error != std::errc::invalid_argument &&
                number.find_first_not_of(kDigits, text[e + 1] == '-') == std::string::npos;
    constexpr int64_t kLargest = int64_t{1} << 40;
    if (error == std::errc::result_out_of_range) exponent = number[0] == '-' ? -kLargest : kLargest;
  }
  require(is_number, "{}: \"{}\" is not a number", where, text.substr(0, 40));

  const size_t first = digits.find_first_not_of('0');
  if (first == std::string::npos) return {};
  digits = digits.substr(first, digits.find_last_not_of('0') + 1 - first);
  const auto num_digits = static_cast<int64_t>(digits.size());
  // How many of the digits are before the point. It may be less than none and more than all.
  const int64_t point =
      static_cast<int64_t>(num_before_point) - static_cast<int64_t>(first) + exponent;
  require(std::max(point, num_digits) - std::min(point, int64_t{0}) <= kMaxDigits,
          "{}: {}... has more than {} digits", where, text.substr(0, 20), kMaxDigits);
  if (point < 0) digits.insert(0, static_cast<size_t>(-point), '0');
  if (point > num_digits) digits.append(static_cast<size_t>(point - num_digits), '0');
  const auto num_whole = static_cast<size_t>(std::max(point, int64_t{0}));
  out.whole = digits.substr(0, num_whole);
  out.fraction = digits.substr(num_whole);
  return out;
}

// An end of a range of numbers without a sign. It has at least one digit before the point.
struct RangeEnd {
  std::string whole, fraction;
  bool is_exclusive = false;

  size_t num_digits() const { return whole.size() + fraction.size(); }
  unsigned digit(size_t i) const {
    if (i >= num_digits()) return 0;
    return static_cast<unsigned>((i < whole.size() ? whole[i] : fraction[i - whole.size()]) - '0');
  }
};

// The numbers without a sign from `low` to `high`, or without an upper end.
class NumberRange {
 public:
  NumberRange(Expressions& e, bool integer, RangeEnd low, std::optional<RangeEnd> high)
      : e_(e), is_integer_(integer), low_(std::move(low)), high_(std::move(high)) {}

  Expr numbers() {
    const size_t low_len = low_.whole.size();
    const size_t high_len = high_ ? high_->whole.size() : kUnlimited;
    if (low_len == high_len) return with_whole_len(low_len, kAtLow | kAtHigh);
    std::vector<Expr> out{with_whole_len(low_len, kAtLow)};
    if (high_) out.push_back(with_whole_len(high_len, kAtHigh));
    // Between the two lengths every number is in the range.
    if (low_len + 1 < high_len) {
      const uint32_t most = high_ ? static_cast<uint32_t>(high_len - 2) : kUnlimited;
      const Expr whole = e_.sequence(e_.byte_range('1', '9'),
                                     e_.repeat(digit_, static_cast<uint32_t>(low_len), most));
      const Expr fraction = e_.sequence(e_.text("."), e_.repeat(digit_, 1));
      out.push_back(is_integer_ ? whole : e_.sequence(whole, e_.optional(fraction)));
    }
    return e_.any_of(out);
  }

 private:
  // Which ends begin with the digits that were read. The others no longer bound what follows.
  enum At : unsigned { kAtLow = 1, kAtHigh = 2 };
  using Rests = std::array<Expr, 4>;  // what may follow, by the bits of At

  // The numbers with this many digits before the point, where the ends in `ends` have as many and
  // the others do not matter. Goes from the last digit to the first one.
  Expr with_whole_len(size_t whole_len, unsigned ends) {
    size_t last = whole_len + 1;
    if (ends & kAtLow) last = std::max(last, low_.num_digits());
    if (ends & kAtHigh) last = std::max(last, high_->num_digits());
    Rests rests = after_all_digits();
    for (size_t i = last; i-- > 0;) {
      Rests longer = with_digit(i, rests, ends, i == 0 && whole_len > 1 ? 1 : 0);
      if (i == whole_len)
        for (Expr& rest : longer)
          rest = is_integer_ ? Expr::kNothing : e_.sequence(e_.text("."), rest);
      for (unsigned at = 0; at < rests.size(); ++at)
        rests[at] = i >= whole_len && may_end(i, at) ? e_.optional(longer[at]) : longer[at];
    }
    return rests[ends];
  }

  // What may follow when the ends have only zeros left.
  Rests after_all_digits() {
    const Expr any = e_.repeat(digit_, 0), zeros = e_.repeat(e_.text("0"), 0);
    const Expr not_zero = e_.sequence({zeros, e_.byte_range('1', '9'), any});
    const bool with_low = !low_.is_exclusive, with_high = high_ && !high_->is_exclusive;
    return {any, with_low ? any : not_zero, with_high ? zeros : Expr::kNothing,
            with_low && with_high ? zeros : Expr::kNothing};
  }

  // The digit at place i, which is at least `first`, and what may follow it.
  Rests with_digit(size_t i, const Rests& rests, unsigned ends, unsigned first) {
    Rests out{};
    for (unsigned at = 0; at < out.size(); ++at) {
      if ((at & ~ends) != 0) continue;
      const unsigned low = at & kAtLow ? low_.digit(i) : first;
      const unsigned high = at & kAtHigh ? high_->digit(i) : 9;
      std::array<Bytes, 4> digits;  // by which ends begin with them
      for (unsigned digit = low; digit <= high; ++digit)
        digits[at & ((digit == low ? kAtLow : 0U) | (digit == high ? kAtHigh : 0U))].set('0' +
                                                                                         digit);
      std::vector<Expr> alternatives;
      for (size_t next = 0; next < digits.size(); ++next)
        alternatives.push_back(e_.sequence(e_.bytes(digits[next]), rests[next]));
      out[at] = e_.any_of(alternatives);
    }
    return out;
  }

  // Whether a number may be the first `num_digits` digits of the ends in `at`. Ends have no zeros
  // behind the point, so an end with more digits is larger.
  bool may_end(size_t num_digits, unsigned at) const {
    if ((at & kAtLow) && (num_digits < low_.num_digits() || low_.is_exclusive)) return false;
    return !(at & kAtHigh) || !high_ || num_digits < high_->num_digits() || !high_->is_exclusive;
  }

  Expressions& e_;
  const bool is_integer_;
  const RangeEnd low_;
  const std::optional<RangeEnd> high_;
  const Expr digit_ = e_.byte_range('0', '9');
};

struct DecimalBound {
  Decimal value;
  bool is_exclusive;
};

// The numbers without a sign in a range whose ends may be negative.
Expr not_negative(Expressions& e, bool integer, const std::optional<DecimalBound>& min,
                  const std::optional<DecimalBound>& max) {
  const auto range_end = [](const DecimalBound& bound) {
    const Decimal& value = bound.value;
    return RangeEnd{value.whole.empty() ? "0" : value.whole, value.fraction, bound.is_exclusive};
  };
  const RangeEnd low = min && !min->value.is_negative ? range_end(*min) : RangeEnd{"0", "", false};
  if (!max) return NumberRange(e, integer, low, std::nullopt).numbers();
  if (max->value.is_negative) return Expr::kNothing;
  if (min && !min->value.is_negative && max->value.magnitude_less(min->value))
    return Expr::kNothing;
  return NumberRange(e, integer, low, range_end(*max)).numbers();
}

Expr without_bounds(Expressions& e, bool integer, bool with_exponent) {
  std::string pattern = "-?(?:0|[1-9][0-9]*)";
  if (!integer) pattern += "(?:\\.[0-9]+)?";
  if (!integer && with_exponent) pattern += "(?:[Ee][+-]?[0-9]+)?";
  return parse_regex(e, pattern, {}, "a number");
}

// The multiples of a decimal number, with an optional sign.
Expr multiples(Expressions& e, const std::string& text, bool integer, const std::string& where) {
  const Decimal divisor = parse_decimal(text, where);
  require(!divisor.is_zero() && !divisor.is_negative, "{}: {} must be greater than 0", where,
          text.substr(0, 40));
  std::string digits = divisor.whole + divisor.fraction;
  // The multiples of 100 n are those of n with two zeros behind them.
  const size_t num_zeros =
      divisor.fraction.empty() ? digits.size() - 1 - digits.find_last_not_of('0') : 0;
  digits.resize(digits.size() - num_zeros);
  uint64_t value = 0, power = 1;
  const auto error = std::from_chars(digits.data(), digits.data() + digits.size(), value).ec;
  size_t scale = divisor.fraction.size();
  if (integer && scale <= kMaxScale) {  // n is a multiple of a / b if it is one of a / gcd(a, b)
    for (; scale > 0; --scale) power *= 10;
    value /= std::gcd(value, power);
  }
  require(error == std::errc() && value <= kMaxDivisor && scale <= kMaxScale,
          "{}: multiples of {} are not supported; without zeros at its ends and without the point, "
          "the number may be at most {}, and {} of its digits may be behind the point",
          where, text.substr(0, 40), kMaxDivisor, kMaxScale);
  Expr out = e.multiple_of(static_cast<uint32_t>(value), static_cast<uint32_t>(scale));
  if (num_zeros > 0) {
    const Expr zeros = e.repeat(e.text("0"), 0);
    const Expr whole = e.both(out, e.repeat(e.byte_range('0', '9'), 1));
    out =
        e.sequence(e.any_of({e.text("0"), e.sequence(whole, e.text(std::string(num_zeros, '0')))}),
                   e.optional(e.sequence(e.text("."), zeros)));
  }
  return e.sequence(e.optional(e.text("-")), out);
}

}  // namespace

Expr number(Expressions& e, const NumberForm& form, const std::string& where) {
  const auto decimal = [&](const std::optional<Bound>& bound) -> std::optional<DecimalBound> {
    if (!bound) return std::nullopt;
    return DecimalBound{parse_decimal(bound->value, where), bound->exclusive};
  };
  auto min = decimal(form.min), max = decimal(form.max);
  Expr out;
  if (!min && !max) {
    out = without_bounds(e, form.integer, /*with_exponent=*/!form.multiple_of);
  } else {
    const Expr plain = not_negative(e, form.integer, min, max);
    for (auto* const bound : {&min, &max})
      if (*bound && !(*bound)->value.is_zero())
        (*bound)->value.is_negative = !(*bound)->value.is_negative;
    out = e.any_of({plain, e.sequence(e.text("-"), not_negative(e, form.integer, max, min))});
  }
  return form.multiple_of ? e.both(out, multiples(e, *form.multiple_of, form.integer, where)) : out;
}

}  // namespace nanovllm::grammar
