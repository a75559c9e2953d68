#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

/// What Python's str can do, on UTF-8. Positions and lengths count code points. A byte that is not
/// part of valid UTF-8 counts as one character and is kept.
namespace nanovllm::jinja {

/// The code point at byte `i`, which moves behind it.
int32_t next_code_point(std::string_view s, size_t& i);
void append_code_point(std::string& out, int32_t code_point);

bool is_space(int32_t code_point);
bool is_printable(int32_t code_point);
bool is_letter(int32_t code_point);
bool is_digit(int32_t code_point);

size_t count_code_points(std::string_view s);
/// The byte at which code point number `n` begins, or the size.
size_t byte_offset(std::string_view s, size_t n);

/// Without the whitespace, or the characters of `chars`, at its ends.
std::string_view strip(std::string_view s, std::optional<std::string_view> chars, bool left,
                       bool right);
/// At runs of whitespace (no separator) or at each separator, at most `limit` times where that is
/// not negative.
std::vector<std::string_view> split(std::string_view s, std::optional<std::string_view> separator,
                                    int64_t limit);
std::vector<std::string_view> rsplit(std::string_view s, std::optional<std::string_view> separator,
                                     int64_t limit);
/// Line ends are those of Python, "\r\n" and the Unicode ones included.
std::vector<std::string_view> split_lines(std::string_view s, bool keep_ends = false);

std::string to_lower(std::string_view s);
std::string to_upper(std::string_view s);
std::string capitalize(std::string_view s);
/// str.title(): upper case after anything that has no case.
std::string title(std::string_view s);
std::string swap_case(std::string_view s);
/// Some character has case, and all that do are lower (upper) case.
bool is_lower(std::string_view s);
bool is_upper(std::string_view s);

/// The first place of `needle` at or after byte `from`, in linear time; npos where there is none.
size_t find(std::string_view s, std::string_view needle, size_t from = 0);

/// Python's literal for the text, in the quotes that repr() chooses.
std::string quote(std::string_view s);
/// &, <, >, ' and " as HTML entities, as markupsafe writes them.
std::string escape_html(std::string_view s);

}  // namespace nanovllm::jinja
