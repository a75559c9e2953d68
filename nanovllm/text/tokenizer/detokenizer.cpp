#include "nanovllm/text/tokenizer/detokenizer.h"

#include <charconv>

#include "nanovllm/base/check.h"
#include "nanovllm/base/strings/utf8.h"
#include "nanovllm/text/tokenizer/bpe.h"
#include "nanovllm/text/tokenizer/tokenizer.h"
#include "nanovllm/text/tokenizer_json.h"

namespace nanovllm {

namespace {

// The byte that "<0x0A>" names; -1 for any other text.
int named_byte(std::string_view token) {
  if (token.size() != 6 || !token.starts_with("<0x") || token[5] != '>') return -1;
  unsigned char byte = 0;
  const char* const end = token.data() + 5;
  return std::from_chars(token.data() + 3, end, byte, 16).ptr == end ? byte : -1;
}

}  // namespace

TokenTexts::TokenTexts(const TokenizerJson& json) {
  const auto components =
      json.components("decoder", "decoders",
                      {"ByteLevel", "Metaspace", "Replace", "ByteFallback", "Fuse", "Strip"});
  require(!components.empty(), "{}: decoder: a tokenizer without a decoder is not supported",
          json.where);
  auto next = components.begin();
  const auto take = [&](std::string_view type) -> const Component* {
    return next != components.end() && next->type == type ? &*next++ : nullptr;
  };
  if (take("ByteLevel") != nullptr) {
    byte_level_ = true;
  } else if (const Component* metaspace = take("Metaspace")) {
    metaspace_ = metaspace->string("replacement");
    require(!metaspace_.empty(), "{}: the replacement is empty", metaspace->where);
    drops_first_spaces_ = metaspace->json.contains("prepend_scheme")
                              ? metaspace->string("prepend_scheme") != "never"
                              : metaspace->flag("add_prefix_space", true);
  } else {
    while (const Component* replace = take("Replace"))
      replacements_.emplace_back(replace->literal_pattern(), replace->string("content"));
    byte_fallback_ = take("ByteFallback") != nullptr;
    const bool has_fuse = take("Fuse") != nullptr;
    if (const Component* strip = take("Strip")) {
      const Json& start = strip->at("start");
      require(has_fuse && strip->at("stop") == 0 && start.is_number_unsigned() && start < 1000,
              "{}: it is supported only after Fuse, with a start of 0 to 999 and a stop of 0",
              strip->where);
      stripped_ = strip->string("content");
      require(!stripped_.empty(), "{}: the content is empty", strip->where);
      max_stripped_ = start.get<int>();
    }
  }
  if (next != components.end())
    fail(
        "{}: a decoder is ByteLevel, Metaspace, or Replace, ByteFallback, Fuse, Strip in this "
        "order",
        next->where);
}

void TokenTexts::set(int32_t id, std::string_view token, bool special) {
  if (id >= size()) entries_.resize(static_cast<size_t>(id) + 1);
  Entry& entry = entries_[static_cast<size_t>(id)];
  entry = {.begin = static_cast<uint32_t>(bytes_.size()), .known = true, .special = special};
  // A token that the alphabet does not spell, such as an added one with a space, is its own text.
  if (!byte_level_ || !append_spelled_bytes(token, bytes_)) {
    std::string text(token);
    budget_.add_text(token.size());
    for (const auto& [what, with] : replacements_) text = replace_all(text, what, with, budget_);
    if (const int byte = byte_fallback_ ? named_byte(text) : -1; byte >= 0) {
      entry.byte = true;
      text.assign(1, static_cast<char>(byte));
    }
    bytes_ += text;
  }
  entry.len = static_cast<uint32_t>(bytes_.size()) - entry.begin;
}

Detokenizer::Detokenizer(const Tokenizer& tokenizer, bool skip_special_tokens)
    : texts_(tokenizer.token_texts()),
      skip_special_tokens_(skip_special_tokens),
      strips_left_(texts_.max_stripped_) {}

void Detokenizer::continue_text() {
  at_start_ = false;
  strips_left_ = 0;
}

std::string Detokenizer::push(int32_t id) {
  if (!texts_.contains(id) || (skip_special_tokens_ && texts_.is_special(id))) return {};
  const std::string_view text = texts_.text(id);
  if (texts_.byte_level_) {
    if (pending_.empty() && is_utf8(text)) return std::string(text);
    std::string out;
    pending_ += text;
    pending_.erase(0, append_utf8(out, pending_, /*at_end=*/false));
    return out;
  }
  const bool first = std::exchange(at_start_, false);
  if (texts_.entry(id).byte) {
    // A run of byte tokens is text or not as a whole, so it is held back to its end.
    pending_ += text;
    return {};
  }
  std::string out = take_bytes();
  if (texts_.metaspace_.empty()) {
    out += text;
  } else {
    WorkBudget budget(text.size());
    out += replace_all(text, texts_.metaspace_, first && texts_.drops_first_spaces_ ? "" : " ",
                       budget);
  }
  return strip(std::move(out));
}

std::string Detokenizer::finish() {
  if (!texts_.byte_level_) return strip(take_bytes());
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
  while (strips_left_ > 0 && text.starts_with(texts_.stripped_)) {
    text.erase(0, texts_.stripped_.size());
    --strips_left_;
  }
  if (!text.empty()) strips_left_ = 0;
  return text;
}

}  // namespace nanovllm
