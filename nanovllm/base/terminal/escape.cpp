#include "nanovllm/base/terminal/escape.h"

#include <fmt/format.h>

#include <cstddef>

namespace nanovllm {

namespace {

unsigned byte_at(std::string_view text, size_t i) {
  return i < text.size() ? static_cast<unsigned char>(text[i]) : 0;
}

// The length in bytes of the well-formed multi-byte character (table 3-7 of the Unicode standard)
// at the start of `text`, or 0 if there is none. Overlong forms are not well-formed; a terminal may
// accept them as the characters that they encode, so they must not pass.
size_t wide_character(std::string_view text) {
  const unsigned lead = byte_at(text, 0), second = byte_at(text, 1);
  const size_t length = lead >= 0xc2 && lead <= 0xdf   ? 2
                        : lead >= 0xe0 && lead <= 0xef ? 3
                        : lead >= 0xf0 && lead <= 0xf4 ? 4
                                                       : 0;
  if (length == 0) return 0;
  const unsigned least = lead == 0xe0 ? 0xa0 : lead == 0xf0 ? 0x90 : 0x80;
  const unsigned most = lead == 0xed ? 0x9f : lead == 0xf4 ? 0x8f : 0xbf;
  if (second < least || second > most) return 0;
  for (size_t i = 2; i < length; ++i)
    if ((byte_at(text, i) & 0xc0) != 0x80) return 0;
  return length;
}

}  // namespace

std::string escape_controls(std::string_view text, bool keep_lines) {
  std::string out;
  out.reserve(text.size());
  for (size_t i = 0; i < text.size();) {
    const unsigned byte = byte_at(text, i);
    if (byte >= 0x80) {
      const size_t length = wide_character(text.substr(i));
      const bool is_c1 = length == 2 && byte == 0xc2 && byte_at(text, i + 1) < 0xa0;
      if (length == 0 || is_c1) out += fmt::format("\\x{:02x}", byte_at(text, i + (is_c1 ? 1 : 0)));
      else out += text.substr(i, length);
      i += length == 0 ? 1 : length;
      continue;
    }
    if (byte >= 0x20 && byte != 0x7f) out += text[i];
    else if (keep_lines && (byte == '\n' || byte == '\t')) out += text[i];
    else if (byte == '\n') out += "\\n";
    else if (byte == '\r') out += "\\r";
    else if (byte == '\t') out += "\\t";
    else out += fmt::format("\\x{:02x}", byte);
    ++i;
  }
  return out;
}

}  // namespace nanovllm
