#include "nanovllm/base/terminal/escape.h"

#include <fmt/format.h>

#include <cstddef>

#include "nanovllm/base/strings/utf8.h"

namespace nanovllm {

namespace {

unsigned byte_at(std::string_view text, size_t i) {
  return i < text.size() ? static_cast<unsigned char>(text[i]) : 0;
}

}  // namespace

std::string escape_controls(std::string_view text, bool keep_lines) {
  std::string out;
  out.reserve(text.size());
  for (size_t i = 0; i < text.size();) {
    const unsigned byte = byte_at(text, i);
    if (byte >= 0x80) {
      // Overlong forms are not well-formed, but a terminal may decode them.
      const size_t length = character_len(text.substr(i));
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
