#pragma once

#include <string>

namespace nanovllm {

// Properties of characters as the Python package `tokenizers` knows them, so that rare characters
// get the same ids. Its libraries have tables of several Unicode versions: 8 for categories, 10 for
// marks and normal forms, 17 for numbers and lower case. Each function uses utf8proc's tables and
// knows where they differ.

/// ASCII's punctuation and symbols, and the category P of Unicode 8.
bool is_punctuation(char32_t c);
/// The category M of Unicode 10.
bool is_mark(char32_t c);
/// The category Mn of Unicode 8.
bool is_nonspacing_mark(char32_t c);
/// The categories Cc, Cf and Co of Unicode 8; not \t, \n and \r.
bool is_control(char32_t c);
/// The category N of Unicode 17.
bool is_number(char32_t c);
/// Whether a normal form leaves the character as it is, because Unicode 10 does not have it.
bool is_newer_composite(char32_t c);
/// Whether a normal form moves no mark past the character, because Unicode 10 does not have it.
bool is_newer_mark(char32_t c);

/// Appends the lower case of `c` (Unicode 17), which may be two characters.
void append_lower(char32_t c, std::string& out);

}  // namespace nanovllm
