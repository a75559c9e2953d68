#include "nanovllm/text/jinja/text.h"

#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdlib>
#include <utility>

#include "nanovllm/text/jinja/value.h"

namespace nanovllm::jinja {

namespace {

// Of ASCII from a table, since that is most of what is asked.
utf8proc_category_t category(char32_t c) {
  static const auto ascii = [] {
    std::array<utf8proc_category_t, 0x80> table;
    for (size_t i = 0; i < table.size(); ++i)
      table[i] = utf8proc_category(static_cast<utf8proc_int32_t>(i));
    return table;
  }();
  return c < ascii.size() ? ascii[c] : utf8proc_category(static_cast<utf8proc_int32_t>(c));
}

bool is_line_end(char32_t c) {
  return (c >= 0x0A && c <= 0x0D) || (c >= 0x1C && c <= 0x1E) || c == 0x85 || c == 0x2028 ||
         c == 0x2029;
}

bool is_printable(char32_t c) {
  // The categories behind the symbols are separators and what has no picture.
  return c == ' ' || (category(c) >= UTF8PROC_CATEGORY_LU && category(c) <= UTF8PROC_CATEGORY_SO);
}

bool is_cased(utf8proc_category_t category) {
  return category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_LT;
}
bool is_cased(char32_t c) { return is_cased(category(c)); }

std::string lower(char32_t c) {
  return encode(static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(c))));
}

// The sharp s is the one letter in common use whose capital is two letters.
std::string upper(char32_t c) {
  if (c == 0xDF) return "SS";
  return encode(static_cast<char32_t>(utf8proc_toupper(static_cast<utf8proc_int32_t>(c))));
}

std::string titled(char32_t c) {
  if (c == 0xDF) return "Ss";
  return encode(static_cast<char32_t>(utf8proc_totitle(static_cast<utf8proc_int32_t>(c))));
}

// So that pieces never take much more memory than the text.
constexpr size_t kMaxParts = 1'000'000;

void add_part(std::vector<std::string_view>& parts, std::string_view part) {
  if (parts.size() == kMaxParts) raise("a text splits into more than {} parts", kMaxParts);
  parts.push_back(part);
}

template <class Map>
std::string map_characters(std::string_view s, Map map) {
  std::string out;
  out.reserve(s.size());
  for (size_t i = 0; i < s.size();) out += map(next_code_point(s, i));
  return out;
}

bool all_cased_are(std::string_view s, utf8proc_category_t wanted) {
  bool any = false;
  for (size_t i = 0; i < s.size();) {
    const utf8proc_category_t found = category(next_code_point(s, i));
    if (is_cased(found) && found != wanted) return false;
    any = any || is_cased(found);
  }
  return any;
}

}  // namespace

std::string encode(char32_t c) {
  utf8proc_uint8_t bytes[4];
  const auto size = utf8proc_encode_char(static_cast<utf8proc_int32_t>(c), bytes);
  return {reinterpret_cast<const char*>(bytes), static_cast<size_t>(size)};
}

bool is_space(char32_t c) {
  if (c < 0x80) return c == ' ' || (c >= 0x09 && c <= 0x0D) || (c >= 0x1C && c <= 0x1F);
  return c == 0x85 || c == 0xA0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 ||
         c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

bool is_letter(char32_t c) {
  return category(c) >= UTF8PROC_CATEGORY_LU && category(c) <= UTF8PROC_CATEGORY_LO;
}

bool is_digit(char32_t c) { return category(c) == UTF8PROC_CATEGORY_ND; }
bool is_alphanumeric(char32_t c) { return is_letter(c) || is_digit(c); }

size_t count_code_points(std::string_view s) {
  return static_cast<size_t>(std::ranges::count_if(
      s, [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; }));
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
    size_t last = s.size() - 1;
    while ((static_cast<unsigned char>(s[last]) & 0xC0) == 0x80) --last;
    if (!strips(s.substr(last))) break;
    s = s.substr(0, last);
  }
  return s;
}

std::vector<std::string_view> split(std::string_view s, Chars separator, int64_t limit) {
  std::vector<std::string_view> parts;
  if (limit < 0) limit = INT64_MAX;
  for (;; --limit) {
    if (!separator) s = strip(s, {}, true, false);
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
  // The same places but for separators that overlap themselves; what is left of the last cut stays
  // in one piece.
  std::vector<std::string_view> parts = split(s, separator);
  if (limit < 0 || parts.size() <= static_cast<size_t>(limit)) return parts;
  const size_t surplus = parts.size() - static_cast<size_t>(limit);
  const char* end = parts[surplus - 1].data() + parts[surplus - 1].size();
  parts.erase(parts.begin(), parts.begin() + static_cast<ptrdiff_t>(surplus - 1));
  parts[0] = s.substr(0, static_cast<size_t>(end - s.data()));
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

std::string to_lower(std::string_view s) { return map_characters(s, lower); }
std::string to_upper(std::string_view s) { return map_characters(s, upper); }

std::string capitalize(std::string_view s) {
  bool first = true;
  return map_characters(
      s, [&](char32_t c) { return std::exchange(first, false) ? titled(c) : lower(c); });
}

std::string title(std::string_view s) {
  bool after_cased = false;
  return map_characters(s, [&](char32_t c) {
    return std::exchange(after_cased, is_cased(c)) ? lower(c) : titled(c);
  });
}

std::string title_words(std::string_view s) {
  bool begins = true;
  return map_characters(s, [&](char32_t c) {
    const bool separates = is_space(c) || c == '-' || c == '(' || c == '{' || c == '[' || c == '<';
    return std::exchange(begins, separates) ? upper(c) : lower(c);
  });
}

bool is_lower(std::string_view s) { return all_cased_are(s, UTF8PROC_CATEGORY_LL); }
bool is_upper(std::string_view s) { return all_cased_are(s, UTF8PROC_CATEGORY_LU); }

std::string quote(std::string_view s) {
  const bool has_single = s.find('\'') != kNotFound, has_double = s.find('"') != kNotFound;
  const char32_t mark = has_single && !has_double ? '"' : '\'';
  const auto literal = [&](char32_t c) -> std::string {
    if (c == mark || c == '\\') return {'\\', static_cast<char>(c)};
    if (c == '\n') return "\\n";
    if (c == '\r') return "\\r";
    if (c == '\t') return "\\t";
    if (is_printable(c)) return encode(c);
    std::string escape = c < 0x100 ? "\\x" : c < 0x10000 ? "\\u" : "\\U";
    for (int shift = c < 0x100 ? 4 : c < 0x10000 ? 12 : 28; shift >= 0; shift -= 4)
      escape += "0123456789abcdef"[(c >> shift) & 0xF];
    return escape;
  };
  return encode(mark) + map_characters(s, literal) + encode(mark);
}

std::optional<Int> parse_integer(std::string_view text, int base) {
  text = strip(text);
  const bool is_negative = text.starts_with('-');
  if (is_negative || text.starts_with('+')) text.remove_prefix(1);
  if (base == 16 && (text.starts_with("0x") || text.starts_with("0X"))) text.remove_prefix(2);
  Int value = 0;
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
  // Too large or too small: infinity or zero, as strtod has it.
  return error == std::errc() ? value : std::strtod(std::string(text).c_str(), nullptr);
}

std::string escape_html(std::string_view s) {
  constexpr std::string_view kSpecial = "&<>'\"";
  constexpr std::string_view kEntities[] = {"&amp;", "&lt;", "&gt;", "&#39;", "&#34;"};
  std::string out;
  for (const char c : s) {
    if (const size_t i = kSpecial.find(c); i != kNotFound) out += kEntities[i];
    else out += c;
  }
  return out;
}

}  // namespace nanovllm::jinja
