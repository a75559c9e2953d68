#include "nanovllm/text/jinja/text.h"

#include <utf8proc.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <functional>

#include "nanovllm/text/unicode.h"

namespace nanovllm::jinja {

namespace {

utf8proc_category_t category(char32_t c) {
  return utf8proc_category(static_cast<utf8proc_int32_t>(c));
}

bool is_line_end(char32_t c) {
  return (c >= 0x0A && c <= 0x0D) || (c >= 0x1C && c <= 0x1E) || c == 0x85 || c == 0x2028 ||
         c == 0x2029;
}

bool is_printable(char32_t c) {
  // The categories after the symbols are separators, controls and unassigned code points.
  return c == ' ' || (category(c) >= UTF8PROC_CATEGORY_LU && category(c) <= UTF8PROC_CATEGORY_SO);
}

bool is_cased(char32_t c) {
  return category(c) >= UTF8PROC_CATEGORY_LU && category(c) <= UTF8PROC_CATEGORY_LT;
}

// Bounds the memory of a vector of parts, which may take more than the text itself.
constexpr size_t kMaxParts = 1'000'000;

void add_part(std::vector<std::string_view>& parts, std::string_view part) {
  if (parts.size() == kMaxParts) raise("a string splits into more than {} parts", kMaxParts);
  parts.push_back(part);
}

template <class Map>
std::string map_characters(std::string_view s, Map map) {
  std::string out;
  out.reserve(s.size());
  for (size_t i = 0; i < s.size();) out += map(next_code_point(s, i));
  return out;
}

}  // namespace

bool is_space(char32_t c) {
  // Python's whitespace also has the four separators of ASCII.
  return (CharTable::get()[c] & kSpace) != 0 || (c >= 0x1C && c <= 0x1F);
}
bool is_letter(char32_t c) { return (CharTable::get()[c] & kLetter) != 0; }
bool is_digit(char32_t c) { return category(c) == UTF8PROC_CATEGORY_ND; }
bool is_alphanumeric(char32_t c) { return is_letter(c) || is_digit(c); }

size_t count_code_points(std::string_view s) {
  return static_cast<size_t>(std::ranges::count_if(s, std::not_fn(is_continuation)));
}

size_t byte_offset(std::string_view s, size_t n) {
  size_t i = 0;
  while (n-- > 0 && i < s.size()) i += static_cast<size_t>(utf8_len(s[i]));
  return i;
}

std::string_view strip(std::string_view s, Chars chars, bool left, bool right) {
  const auto strips = [&](std::string_view c) {
    size_t i = 0;
    return chars ? find_bytes(*chars, c) != kNotFound : is_space(next_code_point(c, i));
  };
  while (left && !s.empty() && strips(s.substr(0, byte_offset(s, 1))))
    s.remove_prefix(byte_offset(s, 1));
  while (right && !s.empty()) {
    const size_t last = last_char(s);
    if (!strips(s.substr(last))) break;
    s = s.substr(0, last);
  }
  return s;
}

std::vector<std::string_view> split(std::string_view s, Chars separator, int64_t limit) {
  std::vector<std::string_view> parts;
  if (limit < 0) limit = INT64_MAX;
  for (;; --limit) {
    if (!separator) s = strip(s, {}, /*left=*/true, /*right=*/false);
    if (!separator && s.empty()) return parts;
    if (limit == 0) break;
    size_t at = 0;
    if (separator) {
      at = find_bytes(s, *separator);
      if (at == kNotFound) break;
    } else {
      for (size_t i = 0; at < s.size() && !is_space(next_code_point(s, i)); at = i) {
      }
    }
    add_part(parts, s.substr(0, at));
    s.remove_prefix(at + (separator ? separator->size() : 0));
  }
  add_part(parts, s);
  return parts;
}

std::vector<std::string_view> rsplit(std::string_view s, Chars separator, int64_t limit) {
  // Split everywhere, then join the parts on the left again. Only separators that overlap
  // themselves would be found elsewhere from the right.
  std::vector<std::string_view> parts = split(s, separator);
  if (limit < 0 || parts.size() <= static_cast<size_t>(limit)) return parts;
  const auto last_joined = parts.end() - 1 - static_cast<ptrdiff_t>(limit);
  *last_joined =
      s.substr(0, static_cast<size_t>(last_joined->data() + last_joined->size() - s.data()));
  parts.erase(parts.begin(), last_joined);
  return parts;
}

std::vector<std::string_view> split_lines(std::string_view s, bool keep_ends) {
  std::vector<std::string_view> lines;
  size_t begin = 0;
  for (size_t i = 0; i < s.size();) {
    const size_t end = i;
    const char32_t c = next_code_point(s, i);
    if (!is_line_end(c)) continue;
    if (c == '\r' && i < s.size() && s[i] == '\n') ++i;
    add_part(lines, s.substr(begin, (keep_ends ? i : end) - begin));
    begin = i;
  }
  if (begin < s.size()) add_part(lines, s.substr(begin));
  return lines;
}

std::string change_case(std::string_view s, Capitals capitals) {
  constexpr std::u32string_view kBeforeTitle = U"-({[<";
  const bool is_whole_word = capitals == Capitals::kAll || capitals == Capitals::kTitleFilter;
  bool next_is_capital = capitals != Capitals::kNone;
  return map_characters(s, [&](char32_t c) {
    const bool is_capital = next_is_capital;
    if (capitals == Capitals::kFirst) next_is_capital = false;
    if (capitals == Capitals::kTitle) next_is_capital = !is_cased(c);
    if (capitals == Capitals::kTitleFilter)
      next_is_capital = is_space(c) || kBeforeTitle.find(c) != kNotFound;
    // The sharp s is the one letter in common use whose capital is two letters.
    if (c == 0xDF && is_capital) return std::string(is_whole_word ? "SS" : "Ss");
    const auto map = !is_capital     ? utf8proc_tolower
                     : is_whole_word ? utf8proc_toupper
                                     : utf8proc_totitle;
    return to_utf8(static_cast<char32_t>(map(static_cast<utf8proc_int32_t>(c))));
  });
}

bool has_case(std::string_view s, bool capitals) {
  bool any = false;
  for (size_t i = 0; i < s.size();) {
    const char32_t c = next_code_point(s, i);
    if (!is_cased(c)) continue;
    if (category(c) != (capitals ? UTF8PROC_CATEGORY_LU : UTF8PROC_CATEGORY_LL)) return false;
    any = true;
  }
  return any;
}

std::string quote(std::string_view s) {
  const bool has_single = s.find('\'') != kNotFound, has_double = s.find('"') != kNotFound;
  const char32_t mark = has_single && !has_double ? '"' : '\'';
  const auto literal = [&](char32_t c) -> std::string {
    if (c == mark || c == '\\') return {'\\', static_cast<char>(c)};
    if (c == '\n') return "\\n";
    if (c == '\r') return "\\r";
    if (c == '\t') return "\\t";
    if (is_printable(c)) return to_utf8(c);
    const auto code = static_cast<uint32_t>(c);
    if (c < 0x100) return fmt::format("\\x{:02x}", code);
    return c < 0x10000 ? fmt::format("\\u{:04x}", code) : fmt::format("\\U{:08x}", code);
  };
  return to_utf8(mark) + map_characters(s, literal) + to_utf8(mark);
}

std::optional<__int128> parse_integer(std::string_view text, int base) {
  text = strip(text);
  const bool is_negative = text.starts_with('-');
  if (is_negative || text.starts_with('+')) text.remove_prefix(1);
  if (base == 16 && (text.starts_with("0x") || text.starts_with("0X"))) text.remove_prefix(2);
  __int128 value = 0;
  for (const char c : text) {
    int digit = -1;
    std::from_chars(&c, &c + 1, digit, 36);
    if (digit < 0 || digit >= base) return std::nullopt;
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
  // A number that is too large or too small becomes infinity or zero by strtod().
  return error == std::errc() ? value : std::strtod(std::string(text).c_str(), nullptr);
}

void add_escaped(Writer& out, std::string_view s) {
  constexpr std::string_view kSpecial = "&<>'\"";
  constexpr std::string_view kEntities[] = {"&amp;", "&lt;", "&gt;", "&#39;", "&#34;"};
  for (size_t i = 0; i < s.size(); ++i) {
    const size_t special = kSpecial.find(s[i]);
    out.add(special == kNotFound ? s.substr(i, 1) : kEntities[special]);
  }
}

}  // namespace nanovllm::jinja
