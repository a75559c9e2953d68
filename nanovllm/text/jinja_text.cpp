#include "nanovllm/text/jinja_text.h"

#include <fmt/format.h>
#include <string.h>  // memmem
#include <utf8proc.h>

#include <algorithm>

namespace nanovllm::jinja {

namespace {

// Bytes outside valid UTF-8 are carried as Python's surrogateescape does, so that they come out
// unchanged.
constexpr int32_t kEscaped = 0xDC00;

bool is_line_end(int32_t c) {
  return (c >= 0x0A && c <= 0x0D) || (c >= 0x1C && c <= 0x1E) || c == 0x85 || c == 0x2028 ||
         c == 0x2029;
}

enum class Case { kNone, kLower, kUpper, kTitle };

Case case_of(int32_t c) {
  switch (utf8proc_category(c)) {
    case UTF8PROC_CATEGORY_LU:
      return Case::kUpper;
    case UTF8PROC_CATEGORY_LL:
      return Case::kLower;
    case UTF8PROC_CATEGORY_LT:
      return Case::kTitle;
    default:
      return Case::kNone;
  }
}

void append_lower(std::string& out, int32_t c) { append_code_point(out, utf8proc_tolower(c)); }

// The sharp s is the one letter in common use whose capital is two letters.
void append_upper(std::string& out, int32_t c) {
  if (c == 0xDF) out += "SS";
  else append_code_point(out, utf8proc_toupper(c));
}

void append_title(std::string& out, int32_t c) {
  if (c == 0xDF) out += "Ss";
  else append_code_point(out, utf8proc_totitle(c));
}

template <class Append>
std::string map_characters(std::string_view s, Append append) {
  std::string out;
  out.reserve(s.size());
  for (size_t i = 0; i < s.size();) append(out, next_code_point(s, i));
  return out;
}

bool all_cased_are(std::string_view s, Case wanted) {
  bool any = false;
  for (size_t i = 0; i < s.size();) {
    const Case c = case_of(next_code_point(s, i));
    if (c != Case::kNone && c != wanted) return false;
    any = any || c == wanted;
  }
  return any;
}

// The byte at which the code point that ends at byte `end` begins.
size_t previous(std::string_view s, size_t end) {
  for (size_t begin = end - 1;; --begin) {
    size_t i = begin;
    next_code_point(s, i);
    if (i == end) return begin;
    if (begin == 0 || end - begin == 4) return end - 1;
  }
}

}  // namespace

int32_t next_code_point(std::string_view s, size_t& i) {
  const auto byte = static_cast<unsigned char>(s[i]);
  if (byte < 0x80) {
    ++i;
    return byte;
  }
  utf8proc_int32_t c = 0;
  const auto* data = reinterpret_cast<const utf8proc_uint8_t*>(s.data()) + i;
  const utf8proc_ssize_t n =
      utf8proc_iterate(data, static_cast<utf8proc_ssize_t>(s.size() - i), &c);
  if (n <= 0) {
    ++i;
    return kEscaped + byte;
  }
  i += static_cast<size_t>(n);
  return c;
}

void append_code_point(std::string& out, int32_t c) {
  if (c >= kEscaped + 0x80 && c <= kEscaped + 0xFF) {
    out += static_cast<char>(c - kEscaped);
    return;
  }
  utf8proc_uint8_t buffer[4];
  const utf8proc_ssize_t n = utf8proc_encode_char(c, buffer);
  out.append(reinterpret_cast<const char*>(buffer), static_cast<size_t>(n));
}

bool is_space(int32_t c) {
  if (c < 0x80) return c == ' ' || (c >= 0x09 && c <= 0x0D) || (c >= 0x1C && c <= 0x1F);
  return c == 0x85 || c == 0xA0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 ||
         c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

bool is_printable(int32_t c) {
  if (c < 0x80) return c >= 0x20 && c != 0x7F;
  switch (utf8proc_category(c)) {
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
    case UTF8PROC_CATEGORY_ZS:
      return false;
    default:
      return true;
  }
}

bool is_letter(int32_t c) {
  switch (utf8proc_category(c)) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
      return true;
    default:
      return false;
  }
}

bool is_digit(int32_t c) { return utf8proc_category(c) == UTF8PROC_CATEGORY_ND; }

size_t count_code_points(std::string_view s) {
  size_t count = 0;
  for (size_t i = 0; i < s.size(); ++count) next_code_point(s, i);
  return count;
}

size_t byte_offset(std::string_view s, size_t n) {
  size_t i = 0;
  while (n-- > 0 && i < s.size()) next_code_point(s, i);
  return i;
}

std::string_view strip(std::string_view s, std::optional<std::string_view> chars, bool left,
                       bool right) {
  const auto strips = [&](std::string_view c) {
    if (chars) return find(*chars, c) != std::string_view::npos;
    size_t i = 0;
    return is_space(next_code_point(c, i));
  };
  while (left && !s.empty()) {
    size_t end = 0;
    next_code_point(s, end);
    if (!strips(s.substr(0, end))) break;
    s.remove_prefix(end);
  }
  while (right && !s.empty()) {
    const size_t begin = previous(s, s.size());
    if (!strips(s.substr(begin))) break;
    s = s.substr(0, begin);
  }
  return s;
}

std::vector<std::string_view> split(std::string_view s, std::optional<std::string_view> separator,
                                    int64_t limit) {
  std::vector<std::string_view> parts;
  if (separator) {
    for (; limit != 0; --limit) {
      const size_t at = find(s, *separator);
      if (at == std::string_view::npos) break;
      parts.push_back(s.substr(0, at));
      s.remove_prefix(at + separator->size());
    }
    parts.push_back(s);
    return parts;
  }
  for (;; --limit) {
    s = strip(s, std::nullopt, true, false);
    if (s.empty()) return parts;
    if (limit == 0) break;
    size_t end = 0, next = 0;
    while (next < s.size() && !is_space(next_code_point(s, next))) end = next;
    parts.push_back(s.substr(0, end));
    s.remove_prefix(end);
  }
  parts.push_back(s);
  return parts;
}

std::vector<std::string_view> rsplit(std::string_view s, std::optional<std::string_view> separator,
                                     int64_t limit) {
  // Splitting at all places finds the same ones but for separators that overlap themselves.
  std::vector<std::string_view> parts;
  for (; limit != 0; --limit) {
    size_t begin, end;  // of the separator
    if (separator) {
      begin = s.rfind(*separator);
      if (begin == std::string_view::npos) break;
      end = begin + separator->size();
    } else {
      s = strip(s, std::nullopt, false, true);
      if (s.empty()) break;
      end = s.size();
      while (end > 0) {
        const size_t at = previous(s, end);
        size_t i = at;
        if (is_space(next_code_point(s, i))) break;
        end = at;
      }
      if (end == 0) break;
      begin = end;
    }
    parts.push_back(s.substr(end));
    s = s.substr(0, begin);
  }
  if (!separator) s = strip(s, std::nullopt, false, true);
  if (separator || !s.empty()) parts.push_back(s);
  std::reverse(parts.begin(), parts.end());
  return parts;
}

std::vector<std::string_view> split_lines(std::string_view s, bool keep_ends) {
  std::vector<std::string_view> lines;
  size_t begin = 0;
  for (size_t i = 0; i < s.size();) {
    const size_t end = i;
    const int32_t c = next_code_point(s, i);
    if (!is_line_end(c)) continue;
    if (c == '\r' && i < s.size() && s[i] == '\n') ++i;
    lines.push_back(s.substr(begin, (keep_ends ? i : end) - begin));
    begin = i;
  }
  if (begin < s.size()) lines.push_back(s.substr(begin));
  return lines;
}

std::string to_lower(std::string_view s) { return map_characters(s, append_lower); }
std::string to_upper(std::string_view s) { return map_characters(s, append_upper); }

std::string capitalize(std::string_view s) {
  bool first = true;
  return map_characters(s, [&](std::string& out, int32_t c) {
    first ? append_title(out, c) : append_lower(out, c);
    first = false;
  });
}

std::string title(std::string_view s) {
  bool after_cased = false;
  return map_characters(s, [&](std::string& out, int32_t c) {
    after_cased ? append_lower(out, c) : append_title(out, c);
    after_cased = case_of(c) != Case::kNone;
  });
}

std::string swap_case(std::string_view s) {
  return map_characters(s, [](std::string& out, int32_t c) {
    case_of(c) == Case::kUpper ? append_lower(out, c) : append_upper(out, c);
  });
}

bool is_lower(std::string_view s) { return all_cased_are(s, Case::kLower); }
bool is_upper(std::string_view s) { return all_cased_are(s, Case::kUpper); }

size_t find(std::string_view s, std::string_view needle, size_t from) {
  if (from > s.size()) return std::string_view::npos;
  const void* at = memmem(s.data() + from, s.size() - from, needle.data(), needle.size());
  return at == nullptr ? std::string_view::npos
                       : static_cast<size_t>(static_cast<const char*>(at) - s.data());
}

std::string quote(std::string_view s) {
  const bool has_single = s.find('\'') != std::string_view::npos;
  const char mark = has_single && s.find('"') == std::string_view::npos ? '"' : '\'';
  std::string out(1, mark);
  for (size_t i = 0; i < s.size();) {
    const int32_t c = next_code_point(s, i);
    if (c == mark || c == '\\') (out += '\\') += static_cast<char>(c);
    else if (c == '\n') out += "\\n";
    else if (c == '\r') out += "\\r";
    else if (c == '\t') out += "\\t";
    else if (is_printable(c)) append_code_point(out, c);
    else if (c < 0x100) out += fmt::format("\\x{:02x}", c);
    else if (c < 0x10000) out += fmt::format("\\u{:04x}", c);
    else out += fmt::format("\\U{:08x}", c);
  }
  return out += mark;
}

std::string escape_html(std::string_view s) {
  std::string out;
  for (const char c : s) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '\'':
        out += "&#39;";
        break;
      case '"':
        out += "&#34;";
        break;
      default:
        out += c;
    }
  }
  return out;
}

}  // namespace nanovllm::jinja
