#include "nanovllm/text/pre_tokenizer/normalizer.h"

#include <algorithm>
#include <utility>

#include "nanovllm/base/check.h"
#include "nanovllm/base/strings/utf8.h"
#include "nanovllm/text/tokenizer_json.h"
#include "nanovllm/text/unicode.h"

namespace nanovllm {

void WorkBudget::take(size_t bytes) {
  require(bytes <= left_,
          "the tokenizer's normalizer or decoder turns the text into too many bytes");
  left_ -= bytes;
}

std::string replace_all(std::string_view text, std::string_view what, std::string_view with,
                        WorkBudget& budget) {
  std::string out;
  out.reserve(text.size());
  size_t done = 0;
  for (size_t at; (at = find_bytes(text, what, done)) != std::string_view::npos;
       done = at + what.size()) {
    budget.take(at - done + std::max(what.size(), with.size()));
    out.append(text, done, at - done);
    out += with;
  }
  budget.take(text.size() - done);
  out.append(text, done);
  return out;
}

Normalizer::Normalizer(const TokenizerJson& json) {
  for (const Component& component :
       json.components("normalizer", "normalizers", {"NFC", "Prepend", "Replace"})) {
    if (component.type == "NFC") {
      steps_.push_back({Step::kNfc});
    } else if (component.type == "Prepend") {
      steps_.push_back({Step::kPrepend, "", component.string("prepend")});
    } else {
      steps_.push_back({Step::kReplace, component.literal_pattern(), component.string("content")});
    }
  }
}

std::string_view Normalizer::normalize(std::string_view text, std::string& storage,
                                       WorkBudget& budget) const {
  for (const Step& step : steps_) {
    if (step.kind == Step::kNfc) {
      budget.take(4 * text.size());  // sorting marks takes about four times as long as copying
      text = to_nfc(text, storage);
      continue;
    }
    if (step.kind == Step::kPrepend) {
      if (text.empty()) continue;
      budget.take(step.with.size() + text.size());
      storage = step.with + std::string(text);
    } else {
      storage = replace_all(text, step.what, step.with, budget);
    }
    text = storage;
  }
  return text;
}

}  // namespace nanovllm
