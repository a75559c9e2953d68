#include "nanovllm/text/pre_tokenizer/words.h"

#include "nanovllm/base/strings/utf8.h"
#include "nanovllm/text/unicode.h"

namespace nanovllm {

namespace {

struct Char {
  const char* next;  // the character after it
  uint8_t classes;   // CharClass bits; 0 at the end of the text
};

Char char_at(const char* p, const char* end) {
  static const CharTable& table = CharTable::get();
  if (p == end) return {p, 0};
  const char32_t c = next_code_point(p);
  return {p, table[c]};
}

// Skips the characters from `p` on that have one of `classes`.
const char* skip(const char* p, const char* end, uint8_t classes) {
  for (;;) {
    const Char c = char_at(p, end);
    if (!(c.classes & classes)) return p;
    p = c.next;
  }
}

// The length in bytes of 's 't 'm 'd 're 've or 'll at the start of `text`, in any letter case
// (U+017F is another case of s); 0 if there is none.
int contraction_len(std::string_view text) {
  if (text.size() < 2 || text[0] != '\'') return 0;
  const auto lower = [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; };
  const char first = lower(text[1]);
  if (first == 's' || first == 't' || first == 'm' || first == 'd') return 2;
  if (text.size() < 3) return 0;
  const char second = lower(text[2]);
  if ((first == 'r' || first == 'v') && second == 'e') return 3;
  if (first == 'l' && second == 'l') return 3;
  return text.substr(1, 2) == "\xC5\xBF" ? 3 : 0;
}

}  // namespace

int word_pattern_digits(std::string_view pattern) {
  constexpr std::string_view kBefore =
      R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N})";
  constexpr std::string_view kAfter = R"(| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
  if (!pattern.starts_with(kBefore)) return 0;
  pattern.remove_prefix(kBefore.size());
  if (pattern == kAfter) return 1;
  return pattern.starts_with("{1,3}") && pattern.substr(5) == kAfter ? 3 : 0;
}

// Tries the alternatives of the pattern in their order.
const char* end_of_word(const char* p, const char* end, int max_digits) {
  if (const int len = contraction_len({p, static_cast<size_t>(end - p)}); len != 0) return p + len;
  const Char first = char_at(p, end);
  if (first.classes & kLetter) return skip(first.next, end, kLetter);
  if (first.classes & kNumber) {
    const char* after = first.next;
    for (int digits = 1; digits < max_digits; ++digits) {
      const Char c = char_at(after, end);
      if (!(c.classes & kNumber)) break;
      after = c.next;
    }
    return after;
  }
  const Char second = char_at(first.next, end);
  if (!(first.classes & kNewline) && (second.classes & kLetter))
    return skip(second.next, end, kLetter);
  if ((first.classes & kOther) || (*p == ' ' && (second.classes & kOther)))
    return skip(skip(first.next, end, kOther), end, kNewline);

  // A run of white space ends after its last newline. Without a newline it leaves its last
  // character to the next word, if a word follows and the run has two characters or more.
  const char* after_newline = nullptr;
  const char* last = p;  // the last character of the run
  const char* after = p;
  for (Char c = first; c.classes & kSpace; c = char_at(after, end)) {
    last = after;
    after = c.next;
    if (c.classes & kNewline) after_newline = after;
  }
  if (after_newline != nullptr) return after_newline;
  return after == end || last == p ? after : last;
}

}  // namespace nanovllm
