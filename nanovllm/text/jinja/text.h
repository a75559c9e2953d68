#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "nanovllm/text/utf8.h"

/// What Python's str can do, on well-formed UTF-8. Positions and lengths count code points.
namespace nanovllm::jinja {

inline constexpr size_t kNotFound = std::string_view::npos;

/// The code point at byte `i`, which moves behind it.
inline char32_t next_code_point(std::string_view s, size_t& i) {
  const char* p = s.data() + i;
  const char32_t c = nanovllm::next_code_point(p);
  i = static_cast<size_t>(p - s.data());
  return c;
}
std::string encode(char32_t code_point);

bool is_space(char32_t c);
bool is_letter(char32_t c);
bool is_digit(char32_t c);
bool is_alphanumeric(char32_t c);

size_t count_code_points(std::string_view s);
/// The byte at which code point number `n` begins, or the size.
size_t byte_offset(std::string_view s, size_t n);

using Chars = std::optional<std::string_view>;
/// Without the whitespace, or the characters of `chars`, at its ends.
std::string_view strip(std::string_view s, Chars chars = {}, bool left = true, bool right = true);
/// At each separator, or runs of whitespace; at most `limit` times, counted from one end, where
/// that is not negative.
std::vector<std::string_view> split(std::string_view s, Chars separator, int64_t limit = -1);
std::vector<std::string_view> rsplit(std::string_view s, Chars separator, int64_t limit = -1);
/// At Python's line ends, "\r\n" and the Unicode ones included.
std::vector<std::string_view> split_lines(std::string_view s, bool keep_ends = false);

std::string to_lower(std::string_view s);
std::string to_upper(std::string_view s);
std::string capitalize(std::string_view s);
/// Upper case for each letter after something without case (str.title), or after whitespace, a
/// hyphen or an opening bracket (Jinja2's filter).
std::string title(std::string_view s);
std::string title_words(std::string_view s);
/// Some character has case, and all that do are lower (upper) case.
bool is_lower(std::string_view s);
bool is_upper(std::string_view s);

/// Python's literal for the text, in the quotes that repr() chooses.
std::string quote(std::string_view s);
/// Python's int() of a text: an optional sign and prefix, and float(). Empty where it is not one;
/// raises where it does not fit.
std::optional<__int128> parse_integer(std::string_view text, int base = 10);
std::optional<double> parse_float(std::string_view text);

/// &, <, >, ' and " as HTML entities, as markupsafe writes them.
std::string escape_html(std::string_view s);

}  // namespace nanovllm::jinja
