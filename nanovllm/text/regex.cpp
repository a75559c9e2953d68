#include "nanovllm/text/regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <cctype>
#include <memory>
#include <utility>

#include "nanovllm/base/check.h"

namespace nanovllm {

namespace {

// \s as Oniguruma has it: White_Space. PCRE2's own also holds U+180E.
constexpr std::string_view kWhiteSpace = R"(\t-\r\x{85}\p{Z})";

// Oniguruma's pattern in PCRE2's words. What they read differently and no known tokenizer uses is
// refused: nested classes and && in classes, \h \w \b and the like, (?m) and other options,
// quantifiers after {n,m}.
std::string to_pcre(std::string_view pattern, const std::string& where) {
  const auto refuse = [&](size_t at, size_t len) {
    fail("{}: '{}' at byte {} of the pattern '{}' is not supported", where, pattern.substr(at, len),
         at, pattern);
  };
  const auto starts_any = [](std::string_view text, std::initializer_list<std::string_view> with) {
    for (const std::string_view w : with)
      if (text.starts_with(w)) return true;
    return false;
  };
  std::string out;
  bool in_class = false;
  for (size_t i = 0; i < pattern.size(); ++i) {
    const std::string_view rest = pattern.substr(i);
    const char c = pattern[i];
    if (c == '\\' && rest.size() > 1) {
      const char escaped = pattern[++i];
      if (escaped == 's')
        out += in_class ? std::string(kWhiteSpace) : fmt::format("[{}]", kWhiteSpace);
      else if (escaped == 'S' && !in_class) out += fmt::format("[^{}]", kWhiteSpace);
      else if (std::isalnum(static_cast<unsigned char>(escaped)) == 0 ||
               std::string_view("rntfpPdDx").find(escaped) != std::string_view::npos)
        out.append({'\\', escaped});
      else refuse(i - 1, 2);
      continue;
    }
    if (in_class) {
      if (c == '[' || rest.starts_with("&&")) refuse(i, 2);
      in_class = c != ']';
    } else if (c == '[') {
      in_class = true;
      const size_t first = rest.starts_with("[^") ? 2 : 1;  // where a ] is an ordinary character
      if (rest.substr(first).starts_with("]")) refuse(i, first + 1);
    } else if (starts_any(rest, {"}+", "}?", "}*", "{,"})) {
      refuse(i, 2);
    } else if (rest.starts_with("(?") &&
               !starts_any(rest.substr(2), {":", "i:", "=", "!", "<=", "<!", ">"})) {
      refuse(i, 3);
    } else if (rest.starts_with("(*")) {
      refuse(i, 2);
    }
    out += c;
  }
  return out;
}

std::string pcre_message(int code) {
  PCRE2_UCHAR text[128];
  pcre2_get_error_message(code, text, sizeof text);
  return reinterpret_cast<const char*>(text);
}

}  // namespace

Regex::Regex(std::string_view pattern, const std::string& where) {
  const std::string translated = to_pcre(pattern, where);
  const std::unique_ptr<pcre2_compile_context, void (*)(pcre2_compile_context*)> context(
      pcre2_compile_context_create(nullptr), pcre2_compile_context_free);
  pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
  int error = 0;
  size_t error_at = 0;
  // In Ruby's syntax ^ and $ are always about lines.
  code_ = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(translated.data()), translated.size(),
                        PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C, &error,
                        &error_at, context.get());
  require(code_ != nullptr, "{}: bad pattern '{}': {}", where, pattern, pcre_message(error));
  pcre2_jit_compile(code_, PCRE2_JIT_COMPLETE);  // where it cannot, the interpreter does the work
}

Regex::Regex(Regex&& other) noexcept : code_(std::exchange(other.code_, nullptr)) {}

Regex::~Regex() { pcre2_code_free(code_); }

std::vector<Match> Regex::find_all(std::string_view text) const {
  const std::unique_ptr<pcre2_match_data, void (*)(pcre2_match_data*)> data(
      pcre2_match_data_create(1, nullptr), pcre2_match_data_free);
  const size_t* const found = pcre2_get_ovector_pointer(data.get());
  const auto subject = reinterpret_cast<PCRE2_SPTR>(text.data());
  std::vector<Match> parts;
  size_t done = 0;
  for (size_t from = 0; from <= text.size();) {
    const uint32_t options = PCRE2_NO_UTF_CHECK;
    int rc = pcre2_match(code_, subject, text.size(), from, options, data.get(), nullptr);
    if (rc == PCRE2_ERROR_JIT_STACKLIMIT)
      rc = pcre2_match(code_, subject, text.size(), from, options | PCRE2_NO_JIT, data.get(),
                       nullptr);
    if (rc == PCRE2_ERROR_NOMATCH) break;
    require(rc >= 0, "the tokenizer's pattern gave up on this text: {}", pcre_message(rc));
    if (done < found[0]) parts.push_back({done, found[0], false});
    if (found[0] < found[1]) parts.push_back({found[0], found[1], true});
    done = found[1];
    from = found[1];
    if (found[0] == found[1]) {  // an empty match: on with the next character
      do ++from;
      while (from < text.size() && (text[from] & 0xC0) == 0x80);
    }
  }
  if (done < text.size()) parts.push_back({done, text.size(), false});
  return parts;
}

}  // namespace nanovllm
