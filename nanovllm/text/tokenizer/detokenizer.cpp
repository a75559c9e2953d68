#include "nanovllm/text/tokenizer/detokenizer.h"

#include <algorithm>

#include "nanovllm/text/tokenizer/tokenizer.h"

namespace nanovllm {

void TokenTexts::set(int32_t id, std::string_view token, bool special) {
  if (id >= size()) entries_.resize(static_cast<size_t>(id) + 1);
  const auto [text, is_byte] = decoder_.prepare(token, budget_);
  entries_[static_cast<size_t>(id)] = {.begin = static_cast<uint32_t>(bytes_.size()),
                                       .len = static_cast<uint32_t>(text.size()),
                                       .known = true,
                                       .special = special,
                                       .is_byte = is_byte};
  bytes_ += text;
}

Detokenizer::Detokenizer(const Tokenizer& tokenizer, bool skip_special_tokens)
    : texts_(tokenizer.token_texts()),
      skip_special_tokens_(skip_special_tokens),
      decoding_(texts_.decoder_) {}

bool Detokenizer::skips(int32_t id) const {
  return skip_special_tokens_ && std::ranges::count(shown_, id) == 0;
}

std::string Detokenizer::push(int32_t id) {
  if (!texts_.contains(id) || (texts_.is_special(id) && skips(id))) return {};
  return decoding_.push(texts_.text(id), texts_.entry(id).is_byte);
}

}  // namespace nanovllm
