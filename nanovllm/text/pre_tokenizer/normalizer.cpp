#include "nanovllm/text/pre_tokenizer/normalizer.h"

#include <algorithm>
#include <utility>

#include "nanovllm/base/check.h"
#include "nanovllm/base/strings/utf8.h"
#include "nanovllm/text/byte_alphabet.h"
#include "nanovllm/text/tokenizer_json.h"
#include "nanovllm/text/tokenizers_unicode.h"
#include "nanovllm/text/unicode.h"

namespace nanovllm {

namespace {

// Whether a character is in one of the blocks of Chinese characters of BERT's tokenization.py, with
// the gap that `tokenizers` has.
bool is_chinese(char32_t c) {
  const auto is_from = [&](char32_t first, char32_t last) { return c >= first && c <= last; };
  return is_from(0x4E00, 0x9FFF) || is_from(0x3400, 0x4DBF) || is_from(0x20000, 0x2A6DF) ||
         is_from(0x2A700, 0x2B73F) || is_from(0x2B740, 0x2B81F) || is_from(0x2B920, 0x2CEAF) ||
         is_from(0xF900, 0xFAFF) || is_from(0x2F800, 0x2FA1F);
}

void append_clean(char32_t c, std::string& out) {
  if (c == 0 || c == 0xFFFD || is_control(c)) return;
  out += is_white_space(c) ? " " : to_utf8(c);
}

void append_chinese_apart(char32_t c, std::string& out) {
  const std::string text = to_utf8(c);
  out += is_chinese(c) ? " " + text + " " : text;
}

void append_nmt(char32_t c, std::string& out) {
  const auto is_from = [&](char32_t first, char32_t last) { return c >= first && c <= last; };
  if (is_from(0x1, 0x8) || c == 0xB || is_from(0xE, 0x1F) || c == 0x7F || c == 0x8F || c == 0x9F)
    return;
  constexpr char32_t kSpaces[] = {0x9,    0xA,    0xC,    0xD,    0x1680,
                                  0x2028, 0x2029, 0x2581, 0xFEFF, 0xFFFD};
  const bool is_blank =
      is_from(0x200B, 0x200F) || std::ranges::find(kSpaces, c) != std::end(kSpaces);
  out += is_blank ? " " : to_utf8(c);
}

void append_unless_mark(char32_t c, std::string& out) {
  if (!is_mark(c)) out += to_utf8(c);
}

void append_unless_nonspacing_mark(char32_t c, std::string& out) {
  if (!is_nonspacing_mark(c)) out += to_utf8(c);
}

}  // namespace

// A text on its way through the steps.
struct Normalizer::Work {
  std::string_view text;  // may be in `storage`
  std::string& storage;
  WorkBudget& budget;
  bool has_start = true;

  void set(std::string changed) {
    budget.take(std::max(changed.size(), text.size()));
    storage = std::move(changed);
    text = storage;
  }
};

Normalizer::Normalizer(const TokenizerJson& json) {
  constexpr std::pair<std::string_view, void (Normalizer::*)(const Component&)> kComponents[] = {
      {"BertNormalizer", &Normalizer::add_bert},
      {"ByteLevel", &Normalizer::add_byte_level},
      {"Lowercase", &Normalizer::add_lowercase},
      {"NFC", &Normalizer::add_nfc},
      {"NFD", &Normalizer::add_nfd},
      {"NFKC", &Normalizer::add_nfkc},
      {"NFKD", &Normalizer::add_nfkd},
      {"Nmt", &Normalizer::add_nmt},
      {"Prepend", &Normalizer::add_prepend},
      {"Replace", &Normalizer::add_replace},
      {"Strip", &Normalizer::add_strip},
      {"StripAccents", &Normalizer::add_strip_accents}};
  json.for_each_component(
      "normalizer", "normalizers", kComponents,
      [&](auto add_steps, const Component& component) { (this->*add_steps)(component); });
}

Normalizer::Result Normalizer::normalize(std::string_view text, std::string& storage,
                                         WorkBudget& budget) const {
  Work work{text, storage, budget};
  for (const Step& step : steps_)
    if (!work.text.empty()) step(work);
  return {work.text, work.has_start};
}

void Normalizer::add_bert(const Component& component) {
  if (component.flag("clean_text", true)) add_for_each(append_clean);
  if (component.flag("handle_chinese_chars", true)) add_for_each(append_chinese_apart);
  const bool lowercase = component.flag("lowercase", true);
  if (component.flag("strip_accents", lowercase)) {
    add_nfd(component);
    add_for_each(append_unless_nonspacing_mark);
  }
  if (lowercase) add_lowercase(component);
}

void Normalizer::add_byte_level(const Component&) {
  steps_.emplace_back([](Work& work) {
    std::string spelled;
    append_spelling(work.text, spelled);
    work.set(std::move(spelled));
  });
}

void Normalizer::add_lowercase(const Component&) { add_for_each(append_lower); }

void Normalizer::add_nfc(const Component&) {
  steps_.emplace_back([](Work& work) {
    work.budget.take(4 * work.text.size());  // sorting marks takes four times as long as copying
    work.text = to_nfc(work.text, work.storage);
  });
}

void Normalizer::add_nfd(const Component&) {
  steps_.emplace_back([](Work& work) { work.set(normal_form(work.text, NormalForm::kNfd)); });
}

void Normalizer::add_nfkc(const Component&) {
  steps_.emplace_back([](Work& work) { work.set(normal_form(work.text, NormalForm::kNfkc)); });
}

void Normalizer::add_nfkd(const Component&) {
  steps_.emplace_back([](Work& work) { work.set(normal_form(work.text, NormalForm::kNfkd)); });
}

void Normalizer::add_nmt(const Component&) { add_for_each(append_nmt); }

void Normalizer::add_prepend(const Component& component) {
  steps_.emplace_back([prefix = component.string("prepend")](Work& work) {
    work.set(prefix + std::string(work.text));
  });
}

void Normalizer::add_replace(const Component& component) {
  steps_.emplace_back(
      [pattern = read_pattern(component), with = component.string("content")](Work& work) {
        size_t replaced = 0;  // the length of a match at the start
        const Pattern noted = [&](std::string_view text, const OnMatch& on_match) {
          pattern(text, [&](size_t begin, size_t end) {
            if (begin == 0) replaced = end;
            on_match(begin, end);
          });
        };
        std::string changed = replace_all(work.text, noted, with, work.budget);
        // If something replaces several characters, `tokenizers` aligns it with the last of them.
        const auto first_len = static_cast<size_t>(utf8_len(work.text[0]));
        if (replaced > first_len || (replaced > 0 && with.empty())) work.has_start = false;
        work.storage = std::move(changed);
        work.text = work.storage;
      });
}

void Normalizer::add_strip(const Component& component) {
  steps_.emplace_back([left = component.flag("strip_left", true),
                       right = component.flag("strip_right", true)](Work& work) {
    const auto is_space_at = [&](size_t at) {
      return is_white_space(code_point_at(&work.text[at]));
    };
    const char* const begin = work.text.data();
    while (left && !work.text.empty() && is_space_at(0))
      work.text.remove_prefix(static_cast<size_t>(utf8_len(work.text[0])));
    work.has_start = work.has_start && work.text.data() == begin;
    while (right && !work.text.empty() && is_space_at(last_char(work.text)))
      work.text = work.text.substr(0, last_char(work.text));
  });
}

void Normalizer::add_strip_accents(const Component&) { add_for_each(append_unless_mark); }

void Normalizer::add_for_each(void (*append)(char32_t c, std::string& out)) {
  steps_.emplace_back([append](Work& work) {
    std::string changed;
    changed.reserve(work.text.size());
    const char* const end = work.text.data() + work.text.size();
    for (const char* p = work.text.data(); p < end;) {
      const bool is_first = p == work.text.data();
      append(next_code_point(p), changed);
      if (is_first && changed.empty()) work.has_start = false;
    }
    work.set(std::move(changed));
  });
}

}  // namespace nanovllm
