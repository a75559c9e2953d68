#include "apps/cli/checks.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <string_view>
#include <utility>

#include "nanovllm/base/check.h"
#include "nanovllm/base/strings/suggestion.h"
#include "nanovllm/base/strings/utf8.h"

namespace nanovllm {

namespace {

/// Reads all of `text` as a number.
template <class Number>
std::errc read_all(std::string_view text, Number& number) {
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, number);
  return stop == end ? error : std::errc::invalid_argument;
}

/// The number of bytes of a unit such as "K", "MB" or "GiB"; 0 if there is no such unit.
int64_t unit_bytes(std::string unit) {
  std::ranges::transform(unit, unit.begin(), [](unsigned char c) { return std::toupper(c); });
  int64_t bytes = 1;
  for (const std::string name : {"", "K", "M", "G", "T"}) {
    if (unit == name || unit == name + "B" || unit == name + "IB") return bytes;
    bytes *= 1024;
  }
  return 0;
}

/// Replaces a number with a unit, such as 25.6k or 2K, by its digits. A text of another form stays
/// as it is. Returns what is wrong, or an empty text.
std::string expand_unit(std::string& text) {
  constexpr std::string_view kUnits = "kmgt", kLargeUnits = "KMGT", kDigits = "0123456789";
  const char unit = text.empty() ? '\0' : text.back();
  const bool is_binary = kLargeUnits.find(unit) != kLargeUnits.npos;
  const size_t power = is_binary ? kLargeUnits.find(unit) : kUnits.find(unit);
  const std::string number = text.substr(0, text.size() - (text.empty() ? 0 : 1));
  const size_t dot = std::min(number.find('.'), number.size());
  const std::string whole = number.substr(0, dot);
  const std::string fraction = dot < number.size() ? number.substr(dot + 1) : "0";
  const bool are_digits = !whole.empty() && !fraction.empty() &&
                          (whole + fraction).find_first_not_of(kDigits) == std::string::npos;
  if (power == kUnits.npos || !are_digits) return {};
  if (is_binary && dot < number.size())
    return fmt::format("'{}' has a fraction of a power of 1,024; {}{} is one of a power of 1,000",
                       text, number, kUnits[power]);
  int64_t factor = 1, value = 0;
  for (size_t i = 0; i <= power; ++i) factor *= is_binary ? 1024 : 1000;
  if (read_all(whole, value) != std::errc() || __builtin_mul_overflow(value, factor, &value))
    return fmt::format("{} is out of range; it must be less than 8388608T", text);
  for (const char digit : fraction) {
    factor /= 10;
    if (__builtin_add_overflow(value, (digit - '0') * factor, &value))
      return fmt::format("{} is out of range; it must be less than 8388608T", text);
  }
  text = std::to_string(value);
  return {};
}

}  // namespace

Check whole_number(int64_t least, uint64_t most) {
  return [=](std::string& text) -> std::string {
    int64_t below_0 = 0;
    uint64_t number = 0;
    const bool is_negative = text.starts_with('-');
    const std::errc error = is_negative ? read_all(text, below_0) : read_all(text, number);
    if (error == std::errc::invalid_argument)
      return fmt::format("'{}' is not a whole number", text);
    if (error != std::errc() || (is_negative ? below_0 < least : number > most))
      return fmt::format("{} is out of range; it must be from {} to {}", text, least, most);
    text = is_negative ? std::to_string(below_0) : std::to_string(number);
    return {};
  };
}

Check count() {
  return [](std::string& text) -> std::string {
    const std::string error = expand_unit(text);
    constexpr int64_t kLeast = std::numeric_limits<int64_t>::min(),
                      kMost = std::numeric_limits<int64_t>::max();
    return error.empty() ? whole_number(kLeast, kMost)(text) : error;
  };
}

Check decimal_number() {
  return [](std::string& text) -> std::string {
    double number = 0;
    const std::errc error = read_all(text, number);
    if (error == std::errc::result_out_of_range)
      return fmt::format("{} is out of range; it must be 0 or from 2.3e-308 to 1.8e308", text);
    if (error != std::errc() || !std::isfinite(number))
      return fmt::format("'{}' is not a number", text);
    return {};
  };
}

Check byte_size() {
  return [](std::string& text) -> std::string {
    const size_t at = std::min(text.find_first_not_of("0123456789."), text.size());
    const std::string digits = text.substr(0, at);
    const int64_t unit = unit_bytes(text.substr(at));
    const bool is_fraction = digits.find('.') != std::string::npos;
    int64_t whole = 0, bytes = 0;
    double number = 0;
    const std::errc error = is_fraction ? read_all(digits, number) : read_all(digits, whole);
    if (error == std::errc::invalid_argument || unit == 0 || (is_fraction && unit == 1))
      return fmt::format("'{}' is not a number of bytes, such as 4294967296, 512M or 1.5G", text);
    number *= static_cast<double>(unit);
    if (error != std::errc() || __builtin_mul_overflow(whole, unit, &bytes) || number >= 0x1p63)
      return fmt::format("{} is out of range; it must be less than 8388608T", text);
    text = std::to_string(bytes + static_cast<int64_t>(number));
    return {};
  };
}

Check utf8_text() {
  return [](const std::string& text) -> std::string {
    try {
      require_utf8(text, "");
    } catch (const UserError& e) {
      return e.what();
    }
    return {};
  };
}

Check not_empty() {
  return [](const std::string& path) { return path.empty() ? "the name is empty" : ""; };
}

Check known_name(std::vector<std::string> names) {
  return [names = std::move(names)](const std::string& name) -> std::string {
    if (std::ranges::count(names, name) > 0) return {};
    return fmt::format("'{}' must be one of {}{}", name, fmt::join(names, ", "),
                       did_you_mean(name, names));
  };
}

}  // namespace nanovllm
