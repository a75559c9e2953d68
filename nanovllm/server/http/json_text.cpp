#include "nanovllm/server/http/json_text.h"

#include <array>
#include <charconv>
#include <limits>

#include "nanovllm/base/strings/utf8.h"

namespace nanovllm::server {

namespace {

/// For each byte: 0 if it is written as it is, 'u' for \u00XX, else the letter after a backslash.
constexpr std::array<char, 256> kEscapes = [] {
  std::array<char, 256> escapes{};
  for (size_t c = 0; c < 0x20; ++c) escapes[c] = 'u';
  escapes['\b'] = 'b';
  escapes['\f'] = 'f';
  escapes['\n'] = 'n';
  escapes['\r'] = 'r';
  escapes['\t'] = 't';
  escapes['"'] = '"';
  escapes['\\'] = '\\';
  return escapes;
}();

void append_escaped(std::string& to, std::string_view text) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  size_t begin = 0;  // of what is not written yet
  for (size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    const char escape = kEscapes[byte];
    if (escape == 0) [[likely]]
      continue;
    to.append(text, begin, i - begin);
    begin = i + 1;
    to += '\\';
    to += escape;
    if (escape != 'u') continue;
    to += "00";
    to += kDigits[byte >> 4];
    to += kDigits[byte & 15];
  }
  to.append(text, begin);
}

template <class Number>
void append_digits(std::string& to, Number value) {
  char digits[32];  // an int64_t has at most 20 characters, the shortest form of a float 15
  to.append(digits, std::to_chars(digits, digits + sizeof digits, value).ptr);
}

}  // namespace

void append_json_string(std::string& to, std::string_view utf8) {
  to += '"';
  if (is_utf8(utf8)) [[likely]] {
    append_escaped(to, utf8);
  } else {
    std::string repaired;
    append_utf8(repaired, utf8, /*at_end=*/true);
    append_escaped(to, repaired);
  }
  to += '"';
}

void append_number(std::string& to, int64_t value) { append_digits(to, value); }

void append_logprob(std::string& to, float value) {
  constexpr float kLowest = -9999;
  const bool is_finite = value >= kLowest && value <= std::numeric_limits<float>::max();
  append_digits(to, is_finite ? value : kLowest);  // no comparison with NaN is true
}

void append_ids(std::string& to, std::span<const int32_t> ids) {
  to += '[';
  for (size_t i = 0; i < ids.size(); ++i) {
    if (i != 0) to += ',';
    append_number(to, ids[i]);
  }
  to += ']';
}

}  // namespace nanovllm::server
