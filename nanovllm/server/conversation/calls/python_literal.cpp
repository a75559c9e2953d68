#include "nanovllm/server/conversation/calls/python_literal.h"

#include <charconv>
#include <cmath>
#include <cstdint>
#include <set>

#include "nanovllm/base/strings/utf8.h"
#include "nanovllm/server/conversation/calls/characters.h"
#include "nanovllm/server/http/json_text.h"

namespace nanovllm::server {

namespace {

constexpr int kMostLevels = 100;

bool is_in_identifier(char c) {
  return is_digit(c) || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}

/// Appends a code point. Half of a surrogate pair is no character; it becomes U+FFFD.
void append_code_point(std::string& to, uint32_t value) {
  if (value >= 0xd800 && value < 0xe000) {
    to += kReplacementCharacter;
    return;
  }
  const auto append = [&](uint32_t byte) { to += static_cast<char>(byte); };
  const auto append_tail = [&](uint32_t bits) { append(0x80U | (bits & 0x3fU)); };
  if (value < 0x80) return append(value);
  if (value < 0x800) {
    append(0xc0U | value >> 6U);
  } else if (value < 0x10000) {
    append(0xe0U | value >> 12U);
    append_tail(value >> 6U);
  } else {
    append(0xf0U | value >> 18U);
    append_tail(value >> 12U);
    append_tail(value >> 6U);
  }
  append_tail(value);
}

/// Reads `text` from the left to the right and writes JSON. A function that returns false has found
/// something that is not a literal; then its output is of no use.
class Translator {
 public:
  explicit Translator(std::string_view text) : text_(text) {}

  bool literal() {
    skip_spaces();
    if (at_end() || ++level_ > kMostLevels) return false;
    const char c = text_[at_];
    const bool done = c == '\'' || c == '"'                 ? string()
                      : c == '['                            ? list()
                      : c == '{'                            ? dictionary()
                      : is_in_identifier(c) && !is_digit(c) ? constant()
                                                            : number();
    --level_;
    return done;
  }

  bool keywords() {
    std::set<std::string_view> names;
    json_ += '{';
    for (skip_spaces(); !at_end(); skip_spaces()) {
      const std::string_view name = word();
      if (name.empty() || is_digit(name.front()) || !names.insert(name).second) return false;
      if (names.size() > 1) json_ += ", ";
      append_json_string(json_, name);
      json_ += ": ";
      if (!take('=') || !literal()) return false;
      if (!take(',') && !at_end()) return false;
    }
    json_ += '}';
    return true;
  }

  bool at_end() const { return at_ == text_.size(); }
  void skip_spaces() { at_ = std::min(text_.find_first_not_of(kSpaces, at_), text_.size()); }
  std::string take_json() { return std::move(json_); }

 private:
  /// Skips spaces, and then `c` if it is next.
  bool take(char c) {
    skip_spaces();
    if (at_end() || text_[at_] != c) return false;
    ++at_;
    return true;
  }

  std::string_view word() {
    const size_t begin = at_;
    while (!at_end() && is_in_identifier(text_[at_])) ++at_;
    return text_.substr(begin, at_ - begin);
  }

  bool constant() {
    const std::string_view name = word();
    if (name == "True" || name == "true") json_ += "true";
    else if (name == "False" || name == "false") json_ += "false";
    else if (name == "None" || name == "null") json_ += "null";
    else return false;
    return true;
  }

  /// Reads digits, between which single underscores may be. Returns how many there are.
  size_t digits(std::string& to) {
    const size_t before = to.size();
    for (; !at_end(); ++at_) {
      if (is_digit(text_[at_])) to += text_[at_];
      else if (text_[at_] != '_' || to.size() == before || !is_digit(text_[at_ - 1])) break;
    }
    return to.size() - before;
  }

  /// Reads a number. JSON needs digits on both sides of the point, and no sign + before a number.
  bool number() {
    std::string number;
    if (take('-')) number += '-';
    else take('+');
    std::string whole;
    digits(whole);
    if (whole.size() > 1 && whole.front() == '0') return false;
    number += whole.empty() ? "0" : whole;
    bool is_whole = true, has_digits = !whole.empty();
    if (!at_end() && text_[at_] == '.') {
      ++at_;
      is_whole = false;
      number += '.';
      if (digits(number) > 0) has_digits = true;
      else number += '0';
    }
    if (!has_digits) return false;
    if (!at_end() && (text_[at_] == 'e' || text_[at_] == 'E')) {
      ++at_;
      is_whole = false;
      number += 'e';
      if (!at_end() && (text_[at_] == '-' || text_[at_] == '+')) number += text_[at_++];
      if (digits(number) == 0) return false;
    }
    if (text_[at_ - 1] == '_' || (!at_end() && is_in_identifier(text_[at_]))) return false;
    double value = 0;  // infinity is not JSON
    if (!is_whole &&
        (std::from_chars(number.data(), number.data() + number.size(), value).ec != std::errc() ||
         !std::isfinite(value)))
      return false;
    json_ += number;
    return true;
  }

  bool list() {
    ++at_;
    json_ += '[';
    for (bool is_first = true; !take(']'); is_first = false) {
      if (!is_first) json_ += ", ";
      if (!literal()) return false;
      if (!take(',') && !next_is(']')) return false;
    }
    json_ += ']';
    return true;
  }

  bool dictionary() {
    ++at_;
    json_ += '{';
    for (bool is_first = true; !take('}'); is_first = false) {
      if (!is_first) json_ += ", ";
      if (!key() || !take(':')) return false;
      json_ += ": ";
      if (!literal()) return false;
      if (!take(',') && !next_is('}')) return false;
    }
    json_ += '}';
    return true;
  }

  /// Reads a key. In JSON keys are texts; Python's module json writes other constants in quotes.
  bool key() {
    skip_spaces();
    if (next_is('[') || next_is('{')) return false;
    const bool is_text = next_is('"') || next_is('\'');
    if (!is_text) json_ += '"';
    if (!literal()) return false;
    if (!is_text) json_ += '"';
    return true;
  }

  bool next_is(char c) const { return !at_end() && text_[at_] == c; }

  bool string() {
    const char quote = text_[at_++];
    std::string value;
    while (!at_end() && text_[at_] != quote) {
      const char c = text_[at_++];
      if (c == '\n') return false;
      if (c != '\\') value += c;
      else if (!escape(value)) return false;
    }
    if (at_end()) return false;
    ++at_;
    append_json_string(json_, value);
    return true;
  }

  /// Reads what follows a backslash. An unknown escape is text, as in Python.
  bool escape(std::string& to) {
    if (at_end()) return false;
    const char c = text_[at_++];
    constexpr std::string_view kNames = "abfnrtv\\'\"", kMeanings = "\a\b\f\n\r\t\v\\'\"";
    if (const size_t known = kNames.find(c); known != std::string_view::npos) {
      to += kMeanings[known];
    } else if (c == 'x') {
      return code_point(2, to);
    } else if (c == 'u') {
      return code_point(4, to);
    } else if (c == 'U') {
      return code_point(8, to);
    } else if (c >= '0' && c <= '7') {
      size_t len = 1;
      while (len < 3 && at_ + len - 1 < text_.size() && text_[at_ + len - 1] >= '0' &&
             text_[at_ + len - 1] <= '7')
        ++len;
      append_code_point(to, *value_of(text_.substr(at_ - 1, len), 8));
      at_ += len - 1;
    } else {
      to += '\\';
      to += c;
    }
    return true;
  }

  bool code_point(size_t len, std::string& to) {
    if (text_.size() - at_ < len) return false;
    auto value = value_of(text_.substr(at_, len), 16);
    if (!value || *value > 0x10ffff) return false;
    at_ += len;
    // JSON writes a character above U+FFFF as two surrogates, and so do models.
    const bool is_high = *value >= 0xd800 && *value < 0xdc00;
    if (is_high && text_.substr(at_, 2) == "\\u" && text_.size() - at_ >= 6) {
      const auto low = value_of(text_.substr(at_ + 2, 4), 16);
      if (low && *low >= 0xdc00 && *low < 0xe000) {
        value = 0x10000 + ((*value - 0xd800) << 10U) + (*low - 0xdc00);
        at_ += 6;
      }
    }
    append_code_point(to, *value);
    return true;
  }

  static std::optional<uint32_t> value_of(std::string_view digits, int base) {
    uint32_t value = 0;
    const auto [end, error] =
        std::from_chars(digits.data(), digits.data() + digits.size(), value, base);
    if (error != std::errc() || end != digits.data() + digits.size()) return std::nullopt;
    return value;
  }

  std::string_view text_;
  size_t at_ = 0;
  int level_ = 0;
  std::string json_;
};

}  // namespace

std::optional<std::string> json_of_python(std::string_view text) {
  Translator translator(text);
  if (!translator.literal()) return std::nullopt;
  translator.skip_spaces();
  if (!translator.at_end()) return std::nullopt;
  return translator.take_json();
}

std::optional<std::string> json_of_keywords(std::string_view text) {
  Translator translator(text);
  if (!translator.keywords()) return std::nullopt;
  return translator.take_json();
}

}  // namespace nanovllm::server
