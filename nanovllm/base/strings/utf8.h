#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace nanovllm {

inline constexpr std::string_view kReplacementCharacter = "\xEF\xBF\xBD";  // U+FFFD

/// Whether all of `bytes` is well-formed UTF-8 (no overlong forms, surrogates, or values past
/// U+10FFFF).
bool is_utf8(std::string_view bytes);

/// The length in bytes of the well-formed character at the start of `bytes`, which is not empty; 0
/// if there is none.
size_t character_len(std::string_view bytes);

/// Throws UserError that begins with `where` and names the first wrong byte, counted from 1, unless
/// all of `bytes` is well-formed UTF-8. Every text from outside is checked by this function:
/// options, prompts, lines of stdin, and JSON.
void require_utf8(std::string_view bytes, std::string_view where);

/// Appends `bytes` to `out`, each maximal subpart of an ill-formed sequence replaced by U+FFFD
/// (Unicode 15, section 3.9, "U+FFFD Substitution of Maximal Subparts"; what Rust's from_utf8_lossy
/// and Python's errors="replace" do). Returns how many bytes it used: all if `at_end`, else all but
/// the beginning of a character that may still be completed.
size_t append_utf8(std::string& out, std::string_view bytes, bool at_end);

/// The first position of `what` at or after byte `from` of `text`; npos if there is none. Unlike
/// std::string_view::find() it always takes linear time.
size_t find_bytes(std::string_view text, std::string_view what, size_t from = 0);

/// Returns the code point at `p` of well-formed UTF-8, and moves `p` to the next one.
inline char32_t next_code_point(const char*& p) {
  const auto next = [&] { return static_cast<char32_t>(static_cast<unsigned char>(*p++)); };
  const char32_t c = next();
  if (c < 0x80) return c;
  char32_t tail = next() & 0x3F;
  if (c < 0xE0) return (c & 0x1F) << 6 | tail;
  tail = tail << 6 | (next() & 0x3F);
  if (c < 0xF0) return (c & 0x0F) << 12 | tail;
  return (c & 0x07) << 18 | tail << 6 | (next() & 0x3F);
}
inline char32_t code_point_at(const char* p) { return next_code_point(p); }

/// The length in bytes of the character whose first byte is `lead`, in well-formed UTF-8.
inline int utf8_len(char lead) {
  const auto byte = static_cast<unsigned char>(lead);
  return byte < 0x80 ? 1 : byte < 0xE0 ? 2 : byte < 0xF0 ? 3 : 4;
}

/// Whether the byte is not the first one of its character.
inline bool is_continuation(char c) { return (static_cast<unsigned char>(c) & 0xC0) == 0x80; }

/// The place where the last character of well-formed `text`, which is not empty, begins.
inline size_t last_char(std::string_view text) {
  size_t at = text.size() - 1;
  while (at > 0 && is_continuation(text[at])) --at;
  return at;
}

}  // namespace nanovllm
