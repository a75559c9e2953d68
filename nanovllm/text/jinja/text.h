#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "nanovllm/base/strings/utf8.h"
#include "nanovllm/text/jinja/budget.h"

/// The operations of Python's str, on well-formed UTF-8. Positions and lengths count code points.
namespace nanovllm::jinja {

inline constexpr size_t kNotFound = std::string_view::npos;

/// Returns the code point at byte `i` and moves `i` to the next one.
inline char32_t next_code_point(std::string_view s, size_t& i) {
  const char* p = s.data() + i;
  const char32_t c = nanovllm::next_code_point(p);
  i = static_cast<size_t>(p - s.data());
  return c;
}

bool is_space(char32_t c);
bool is_letter(char32_t c);
bool is_digit(char32_t c);
bool is_alphanumeric(char32_t c);

size_t count_code_points(std::string_view s);
/// The byte at which code point number `n` begins, or the size if there are fewer.
size_t byte_offset(std::string_view s, size_t n);

using Chars = std::optional<std::string_view>;
/// Returns `s` without the whitespace, or the characters of `chars`, at its start and its end.
std::string_view strip(std::string_view s, Chars chars = {}, bool left = true, bool right = true);
/// split() and rsplit() split at each separator or, if it is not given, at runs of whitespace. A
/// limit that is not negative is the largest number of splits; rsplit() counts them from the right.
std::vector<std::string_view> split(std::string_view s, Chars separator, int64_t limit = -1);
std::vector<std::string_view> rsplit(std::string_view s, Chars separator, int64_t limit = -1);
/// Splits at the line ends that Python knows, which include "\r\n" and those of Unicode.
std::vector<std::string_view> split_lines(std::string_view s, bool keep_ends = false);

/// Which letters become capitals: none, all, the first, each that follows something without case
/// (str.title), or each that follows whitespace, a hyphen or an opening bracket (Jinja2's filter
/// `title`). All others become lower case.
enum class Capitals { kNone, kAll, kFirst, kTitle, kTitleFilter };
std::string change_case(std::string_view s, Capitals capitals);
/// Whether at least one character has case, and all of these are capitals (or lower case).
bool has_case(std::string_view s, bool capitals);

/// Python's literal for the text, in the quotes that repr() chooses.
std::string quote(std::string_view s);
/// Python's int() and float() of a text. They return nothing if the text is not a number.
/// parse_integer() raises if the number does not fit.
std::optional<__int128> parse_integer(std::string_view text, int base = 10);
std::optional<double> parse_float(std::string_view text);

/// Appends `s` with &, <, >, ' and " as HTML entities, as markupsafe writes them.
void add_escaped(Writer& out, std::string_view s);

}  // namespace nanovllm::jinja
