#include "nanovllm/base/strings/utf8.h"

#include <string.h>  // memmem, which the C++ headers need not have

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "nanovllm/base/check.h"

namespace nanovllm {

namespace {

struct ByteSequence {
  int len;        // bytes of the character, or of the maximal subpart
  bool complete;  // whether it is a well-formed character
  bool cut;       // whether it is well-formed but cut off by the end of the text
};

// Reads the sequence that begins at bytes[at], by table 3-7 of the Unicode Standard. Only the range
// of the second byte depends on the first.
ByteSequence sequence_at(std::string_view bytes, size_t at) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(bytes[at + i]); };
  const unsigned char lead = byte(0);
  if (lead < 0x80) return {1, true, false};
  if (lead < 0xC2 || lead > 0xF4) return {1, false, false};
  const int len = lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
  unsigned char low = 0x80, high = 0xBF;
  if (lead == 0xE0) low = 0xA0;
  if (lead == 0xED) high = 0x9F;
  if (lead == 0xF0) low = 0x90;
  if (lead == 0xF4) high = 0x8F;
  for (int i = 1; i < len; ++i, low = 0x80, high = 0xBF) {
    if (at + i == bytes.size()) return {i, false, true};
    if (byte(i) < low || byte(i) > high) return {i, false, false};
  }
  return {len, true, false};
}

// The end of the run of well-formed characters that begins at `at`.
size_t well_formed_until(std::string_view bytes, size_t at) {
  while (at < bytes.size()) {
    uint64_t eight;
    if (at + sizeof eight <= bytes.size()) {
      std::memcpy(&eight, bytes.data() + at, sizeof eight);
      if ((eight & 0x8080808080808080) == 0) {
        at += sizeof eight;
        continue;
      }
    }
    const ByteSequence s = sequence_at(bytes, at);
    if (!s.complete) break;
    at += s.len;
  }
  return at;
}

}  // namespace

bool is_utf8(std::string_view bytes) { return well_formed_until(bytes, 0) == bytes.size(); }

size_t character_len(std::string_view bytes) {
  const ByteSequence s = sequence_at(bytes, 0);
  return s.complete ? static_cast<size_t>(s.len) : 0;
}

void require_utf8(std::string_view bytes, std::string_view where) {
  const size_t at = well_formed_until(bytes, 0);
  if (at == bytes.size()) [[likely]]
    return;
  fail("{}{}byte {} (0x{:02x}) is not valid UTF-8", where, where.empty() ? "" : ": ", at + 1,
       static_cast<unsigned char>(bytes[at]));
}

size_t append_utf8(std::string& out, std::string_view bytes, bool at_end) {
  size_t at = 0;
  for (;;) {
    const size_t end = well_formed_until(bytes, at);
    out.append(bytes, at, end - at);
    at = end;
    if (at == bytes.size()) return at;
    const ByteSequence s = sequence_at(bytes, at);
    if (s.cut && !at_end) return at;
    out += kReplacementCharacter;
    at += s.len;
  }
}

size_t find_bytes(std::string_view text, std::string_view what, size_t from) {
  if (from > text.size()) return std::string_view::npos;
  if (what.size() < 2) return text.find(what, from);
  // The sanitizers check all bytes that memmem() is given, so it gets windows that double: a call
  // then takes time in proportion to the distance of the match.
  for (size_t window = 256 + 2 * what.size(); text.size() - from >= what.size(); window *= 2) {
    const size_t size = std::min(window, text.size() - from);
    if (const void* at = memmem(text.data() + from, size, what.data(), what.size()); at != nullptr)
      return static_cast<size_t>(static_cast<const char*>(at) - text.data());
    from += size - (what.size() - 1);
  }
  return std::string_view::npos;
}

}  // namespace nanovllm
