#pragma once

#include <string_view>

namespace nanovllm {

/// Whether `pattern` is the one that Qwen 2 and 3 (1 digit) or Llama 3 (up to 3) split words with.
/// 0 if not.
///   (?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|
///   ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+
int word_pattern_digits(std::string_view pattern);

/// The end of the word that begins at `p` < `end`, as that pattern finds it, in well-formed UTF-8;
/// every text is wholly covered by such words. Several times as fast as the pattern in PCRE2.
const char* end_of_word(const char* p, const char* end, int max_digits);

}  // namespace nanovllm
