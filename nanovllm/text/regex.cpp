#include "nanovllm/text/regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <cctype>
#include <memory>
#include <new>
#include <utility>

#include "nanovllm/base/check.h"
#include "nanovllm/text/utf8.h"

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
      const auto is_one_of = [&](std::string_view letters) {
        return letters.find(rest[1]) != std::string_view::npos;
      };
      // The braces of \p{..} are no quantifier.
      const size_t len =
          is_one_of("pPx") && rest.substr(2).starts_with('{') ? rest.find('}') + 1 : 2;
      const bool is_letter = std::isalnum(static_cast<unsigned char>(rest[1])) != 0;
      if ((is_letter && !is_one_of("sSdDpPxrntf")) || (rest[1] == 'S' && in_class) || len == 0)
        refuse(i, 2);
      if (rest[1] == 's' && in_class) out += kWhiteSpace;
      else if (is_one_of("sS"))
        out += fmt::format("[{}{}]", rest[1] == 's' ? "" : "^", kWhiteSpace);
      else out += rest.substr(0, len);
      i += len - 1;
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
  if (context == nullptr) throw std::bad_alloc();
  pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
  int error = 0;
  size_t error_at = 0;
  // In Ruby's syntax ^ and $ are always about lines.
  code_ = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(translated.data()), translated.size(),
                        PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C, &error,
                        &error_at, context.get());
  if (error == PCRE2_ERROR_HEAP_FAILED) throw std::bad_alloc();
  if (code_ == nullptr) fail("{}: bad pattern '{}': {}", where, pattern, pcre_message(error));
  pcre2_jit_compile(code_, PCRE2_JIT_COMPLETE);  // where it cannot, the interpreter does the work
}

Regex::Regex(Regex&& other) noexcept : code_(std::exchange(other.code_, nullptr)) {}

Regex::~Regex() { pcre2_code_free(code_); }

void Regex::find_all(std::string_view text,
                     const std::function<void(size_t, size_t)>& on_match) const {
  const std::unique_ptr<pcre2_match_data, void (*)(pcre2_match_data*)> data(
      pcre2_match_data_create(1, nullptr), pcre2_match_data_free);
  if (data == nullptr) throw std::bad_alloc();
  const auto match = [&](size_t from, uint32_t options) {
    return pcre2_match(code_, reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), from,
                       options | PCRE2_NO_UTF_CHECK, data.get(), nullptr);
  };
  for (size_t from = 0; from <= text.size();) {
    int rc = match(from, 0);
    if (rc == PCRE2_ERROR_JIT_STACKLIMIT) rc = match(from, PCRE2_NO_JIT);
    if (rc == PCRE2_ERROR_NOMATCH) return;
    if (rc == PCRE2_ERROR_NOMEMORY) throw std::bad_alloc();
    if (rc < 0) fail("the tokenizer's pattern gave up on this text: {}", pcre_message(rc));
    const size_t begin = pcre2_get_ovector_pointer(data.get())[0];
    const size_t end = pcre2_get_ovector_pointer(data.get())[1];
    on_match(begin, end);
    // Behind an empty match it goes on with the next character.
    from = end + (begin < end ? 0 : end < text.size() ? utf8_len(text[end]) : 1);
  }
}

}  // namespace nanovllm
