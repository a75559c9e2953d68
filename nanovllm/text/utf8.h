#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace nanovllm {

inline constexpr std::string_view kReplacementCharacter = "\xEF\xBF\xBD";  // U+FFFD

/// Whether all of `bytes` is well-formed UTF-8 (no overlong forms, surrogates, or values past
/// U+10FFFF).
bool is_utf8(std::string_view bytes);

/// Appends `bytes` to `out`, each maximal subpart of an ill-formed sequence replaced by U+FFFD
/// (Unicode 15, section 3.9, "U+FFFD Substitution of Maximal Subparts"; what Rust's from_utf8_lossy
/// and Python's errors="replace" do). Returns how many bytes it used: all, or unless `at_end`, all
/// but a beginning of a character that may still be completed.
size_t append_utf8(std::string& out, std::string_view bytes, bool at_end);

/// The first place of `what` at or after byte `from` of `text`, npos if there is none. In linear
/// time whatever the two are, unlike std::string_view::find().
size_t find_bytes(std::string_view text, std::string_view what, size_t from = 0);

/// The code point at `p` of well-formed UTF-8; moves `p` behind it.
inline char32_t next_code_point(const char*& p) {
  const auto byte = [&](int i) { return static_cast<char32_t>(static_cast<unsigned char>(p[i])); };
  const char32_t lead = byte(0);
  if (lead < 0x80) {
    p += 1;
    return lead;
  }
  if (lead < 0xE0) {
    const char32_t c = (lead & 0x1F) << 6 | (byte(1) & 0x3F);
    p += 2;
    return c;
  }
  if (lead < 0xF0) {
    const char32_t c = (lead & 0x0F) << 12 | (byte(1) & 0x3F) << 6 | (byte(2) & 0x3F);
    p += 3;
    return c;
  }
  const char32_t c =
      (lead & 0x07) << 18 | (byte(1) & 0x3F) << 12 | (byte(2) & 0x3F) << 6 | (byte(3) & 0x3F);
  p += 4;
  return c;
}

/// Bytes of the character whose first byte is `lead`, in well-formed UTF-8.
inline int utf8_len(char lead) {
  const auto byte = static_cast<unsigned char>(lead);
  return byte < 0x80 ? 1 : byte < 0xE0 ? 2 : byte < 0xF0 ? 3 : 4;
}

}  // namespace nanovllm
