#include "nanovllm/text/byte_alphabet.h"

#include <array>
#include <cstdint>

#include "nanovllm/base/strings/utf8.h"
#include "nanovllm/text/unicode.h"

namespace nanovllm {

namespace {

// Printable Latin-1 characters stand for themselves; the other bytes, in their order, are the
// characters from U+0100 on.
constexpr std::array<char16_t, 256> kCharOfByte = [] {
  std::array<char16_t, 256> chars{};
  char16_t next = 0x100;
  for (char16_t b = 0; b < 256; ++b) {
    const bool is_itself = (b >= 0x21 && b <= 0x7E) || (b >= 0xA1 && b != 0xAD);
    chars[b] = is_itself ? b : next++;
  }
  return chars;
}();

constexpr std::array<int16_t, 0x144> kByteOfChar = [] {
  std::array<int16_t, 0x144> bytes{};
  bytes.fill(-1);
  for (size_t b = 0; b < kCharOfByte.size(); ++b) bytes[kCharOfByte[b]] = static_cast<int16_t>(b);
  return bytes;
}();

}  // namespace

bool append_spelled_bytes(std::string_view token, std::string& bytes) {
  const size_t before = bytes.size();
  const char* const end = token.data() + token.size();
  for (const char* p = token.data(); p < end;) {
    const char32_t c = next_code_point(p);
    if (c >= kByteOfChar.size() || kByteOfChar[c] < 0) {
      bytes.resize(before);
      return false;
    }
    bytes += static_cast<char>(kByteOfChar[c]);
  }
  return true;
}

void append_spelling(std::string_view bytes, std::string& token) {
  for (const char byte : bytes) token += to_utf8(kCharOfByte[static_cast<unsigned char>(byte)]);
}

}  // namespace nanovllm
