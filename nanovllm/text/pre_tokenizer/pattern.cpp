#include "nanovllm/text/pre_tokenizer/pattern.h"

#include <algorithm>
#include <memory>

#include "nanovllm/base/check.h"
#include "nanovllm/base/strings/utf8.h"
#include "nanovllm/text/pre_tokenizer/regex.h"
#include "nanovllm/text/pre_tokenizer/words.h"
#include "nanovllm/text/tokenizer_json.h"

namespace nanovllm {

Pattern read_pattern(const JsonObject& component) {
  const JsonObject pattern = component.object("pattern");
  if (pattern.json.contains("Regex"))
    return regex_pattern(pattern.string("Regex"), component.where);
  const std::string literal = pattern.string("String");
  // An empty string matches before and after each character, as an empty expression does.
  return literal.empty() ? regex_pattern("", component.where) : literal_pattern(literal);
}

Pattern literal_pattern(const std::string& literal) {
  return [literal](std::string_view text, const OnMatch& on_match) {
    for (size_t at = 0; (at = find_bytes(text, literal, at)) != std::string_view::npos;
         at += literal.size())
      on_match(at, at + literal.size());
  };
}

Pattern regex_pattern(const std::string& regex, const std::string& where) {
  if (const int max_digits = word_pattern_digits(regex); max_digits > 0) {
    return [max_digits](std::string_view text, const OnMatch& on_match) {
      const char* const end = text.data() + text.size();
      for (const char *p = text.data(), *next; p < end; p = next) {
        next = end_of_word(p, end, max_digits);
        on_match(static_cast<size_t>(p - text.data()), static_cast<size_t>(next - text.data()));
      }
    };
  }
  return
      [compiled = std::make_shared<const Regex>(regex, where)](
          std::string_view text, const OnMatch& on_match) { compiled->find_all(text, on_match); };
}

Pattern character_pattern(bool (*is_member)(char32_t)) {
  return [is_member](std::string_view text, const OnMatch& on_match) {
    const char* const end = text.data() + text.size();
    for (const char* p = text.data(); p < end;) {
      const auto begin = static_cast<size_t>(p - text.data());
      if (is_member(next_code_point(p))) on_match(begin, static_cast<size_t>(p - text.data()));
    }
  };
}

Pattern length_pattern(size_t length) {
  return [length](std::string_view text, const OnMatch& on_match) {
    for (size_t begin = 0, end = 0; begin < text.size(); begin = end) {
      for (size_t n = 0; n < length && end < text.size(); ++n)
        end += static_cast<size_t>(utf8_len(text[end]));
      on_match(begin, end);
    }
  };
}

void WorkBudget::take(size_t bytes) {
  require(
      bytes <= left_,
      "the tokenizer's normalizer, pre_tokenizer or decoder turns the text into too many bytes");
  left_ -= bytes;
}

std::string replace_all(std::string_view text, const Pattern& pattern, std::string_view with,
                        WorkBudget& budget) {
  std::string out;
  out.reserve(text.size());
  size_t done = 0;
  pattern(text, [&](size_t begin, size_t end) {
    budget.take(begin - done + std::max(end - begin, with.size()));
    out.append(text, done, begin - done);
    out += with;
    done = end;
  });
  budget.take(text.size() - done);
  out.append(text, done);
  return out;
}

}  // namespace nanovllm
