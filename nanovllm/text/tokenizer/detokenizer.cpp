#include "nanovllm/text/tokenizer/detokenizer.h"

#include <utility>

#include "nanovllm/text/pre_tokenizer/normalizer.h"
#include "nanovllm/text/tokenizer/token_texts.h"
#include "nanovllm/text/tokenizer/tokenizer.h"
#include "nanovllm/text/utf8.h"

namespace nanovllm {

Detokenizer::Detokenizer(const Tokenizer& tokenizer, bool skip_special_tokens)
    : texts_(tokenizer.token_texts()),
      skip_special_tokens_(skip_special_tokens),
      strip_(texts_.max_stripped()) {}

std::string Detokenizer::push(int32_t id) {
  if (!texts_.contains(id) || (skip_special_tokens_ && texts_.is_special(id))) return {};
  const std::string_view text = texts_.text(id);
  if (texts_.byte_level()) {
    if (pending_.empty() && is_utf8(text)) return std::string(text);
    std::string out;
    pending_ += text;
    pending_.erase(0, append_utf8(out, pending_, /*at_end=*/false));
    return out;
  }
  const bool first = std::exchange(at_start_, false);
  if (texts_.is_byte(id)) {
    // A run of byte tokens is text or not as a whole, so it is kept back to its end.
    pending_ += text;
    return {};
  }
  std::string out = take_bytes();
  if (texts_.metaspace().empty()) out += text;
  else
    out += replace_all(text, texts_.metaspace(), first && texts_.drops_first_spaces() ? "" : " ");
  return strip(std::move(out));
}

std::string Detokenizer::finish() {
  if (!texts_.byte_level()) return strip(take_bytes());
  std::string out;
  append_utf8(out, std::exchange(pending_, {}), /*at_end=*/true);
  return out;
}

std::string Detokenizer::take_bytes() {
  std::string bytes = std::exchange(pending_, {});
  if (is_utf8(bytes)) return bytes;
  std::string out;
  for (size_t i = 0; i < bytes.size(); ++i) out += kReplacementCharacter;
  return out;
}

std::string Detokenizer::strip(std::string text) {
  while (strip_ > 0 && text.starts_with(texts_.stripped())) {
    text.erase(0, texts_.stripped().size());
    --strip_;
  }
  if (!text.empty()) strip_ = 0;
  return text;
}

}  // namespace nanovllm
