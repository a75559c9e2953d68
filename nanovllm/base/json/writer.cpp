#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <ostream>

#include "nanovllm/base/json.h"
#include "nanovllm/base/strings/utf8.h"

namespace nanovllm {

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

void append_unit(std::string& to, char32_t utf16) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  to += "\\u";
  for (const int shift : {12, 8, 4, 0}) to += kDigits[utf16 >> shift & 15];
}

void append_escaped(std::string& to, std::string_view text) {
  size_t begin = 0;  // where the text that is not written yet begins
  for (size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    const char escape = kEscapes[byte];
    if (escape == 0) [[likely]]
      continue;
    to.append(text, begin, i - begin);
    begin = i + 1;
    if (escape == 'u') append_unit(to, byte);
    else (to += '\\') += escape;
  }
  to.append(text, begin);
}

/// Appends a text and escapes all that is not printable ASCII.
void append_ascii(std::string& to, std::string_view text) {
  const char* const end = text.data() + text.size();
  for (const char* p = text.data(); p < end;) {
    const char* const from = p;
    const char32_t c = next_code_point(p);
    if (c < 0x7F) append_escaped(to, {from, 1});
    else if (c < 0x10000) append_unit(to, c);
    else {
      append_unit(to, 0xD800 + ((c - 0x10000) >> 10));
      append_unit(to, 0xDC00 + ((c - 0x10000) & 0x3FF));
    }
  }
}

/// Appends the shortest digits that give the same double. Numbers that would need many zeros have
/// an exponent, and whole numbers end with ".0".
void append_real(std::string& to, double real) {
  if (!std::isfinite(real)) {
    to += "null";
    return;
  }
  const double size = std::abs(real);
  const bool is_fixed = real == 0 || (size >= 1e-4 && size < 1e15);
  char digits[32];
  char* const end =
      std::to_chars(digits, digits + sizeof digits, real,
                    is_fixed ? std::chars_format::fixed : std::chars_format::scientific)
          .ptr;
  to.append(digits, end);
  if (is_fixed && std::find(digits, end, '.') == end) to += ".0";
}

class Writer {
 public:
  Writer(std::string& to, int indent, bool ascii) : to_(to), indent_(indent), ascii_(ascii) {}

  void write(const Json& json) {
    switch (json.type()) {
      case Json::Type::kNull:
        to_ += "null";
        break;
      case Json::Type::kBoolean:
        to_ += json.get<bool>() ? "true" : "false";
        break;
      case Json::Type::kInteger:
        to_ += std::to_string(json.get<int64_t>());
        break;
      case Json::Type::kUnsigned:
        to_ += std::to_string(json.get<uint64_t>());
        break;
      case Json::Type::kReal:
        append_real(to_, json.get<double>());
        break;
      case Json::Type::kString:
        append_json_string(to_, json.string(), ascii_);
        break;
      case Json::Type::kArray:
        list('[', json, ']', [&](auto item) { write(*item); });
        break;
      case Json::Type::kObject:
        list('{', json, '}', [&](auto item) {
          append_json_string(to_, item.key(), ascii_);
          to_ += indent_ < 0 ? ":" : ": ";
          write(*item);
        });
    }
  }

 private:
  void list(char open, const Json& json, char close, auto&& write_item) {
    to_ += open;
    ++depth_;
    for (auto item = json.begin(); item != json.end(); ++item) {
      if (item != json.begin()) to_ += ',';
      new_line();
      write_item(item);
    }
    --depth_;
    if (!json.empty()) new_line();
    to_ += close;
  }
  void new_line() {
    if (indent_ < 0) return;
    to_ += '\n';
    to_.append(static_cast<size_t>(indent_ * depth_), ' ');
  }

  std::string& to_;
  int indent_, depth_ = 0;
  bool ascii_;
};

}  // namespace

void append_json_string(std::string& to, std::string_view utf8, bool ascii) {
  to += '"';
  std::string repaired;
  if (!is_utf8(utf8)) [[unlikely]] {
    append_utf8(repaired, utf8, /*at_end=*/true);
    utf8 = repaired;
  }
  if (ascii) append_ascii(to, utf8);
  else append_escaped(to, utf8);
  to += '"';
}

std::string dump_json(const Json& json, int indent) {
  std::string text;
  Writer(text, indent, /*ascii=*/false).write(json);
  return text;
}

std::ostream& operator<<(std::ostream& to, const Json& json) { return to << dump_json(json); }

std::string printable(const Json& value) {
  constexpr size_t kMaxBytes = 200;
  std::string text;
  Writer(text, /*indent=*/-1, /*ascii=*/true).write(value);
  if (text.size() > kMaxBytes) text = text.substr(0, kMaxBytes) + "...";
  return text;
}

}  // namespace nanovllm
