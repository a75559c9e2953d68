#include "nanovllm/text/tokenizer/token_texts.h"

#include <charconv>
#include <utility>

#include "nanovllm/base/check.h"
#include "nanovllm/text/pre_tokenizer/normalizer.h"
#include "nanovllm/text/tokenizer/bpe.h"
#include "nanovllm/text/tokenizer/tokenizer_json.h"
#include "nanovllm/text/utf8.h"

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

TokenTexts::TokenTexts(const Json& decoder, const std::string& where) {
  const auto list = components(decoder, "decoders", where);
  require(!list.empty(), "{}: a tokenizer without a decoder is not supported", where);
  // What is put together goes through the stages in one order.
  constexpr const char* kOrder[] = {"Replace", "ByteFallback", "Fuse", "Strip"};
  constexpr size_t kFuse = 2;
  size_t stage = 0;
  for (const Json* component : list) {
    const std::string type = string_field(*component, "type", where);
    const std::string here = fmt::format("{}: {}", where, type);
    if (type == "ByteLevel" || type == "Metaspace") {
      require(list.size() == 1, "{}: it is supported only alone", here);
      byte_level_ = type == "ByteLevel";
      if (byte_level_) continue;
      metaspace_ = string_field(*component, "replacement", here);
      require(!metaspace_.empty(), "{}: the replacement is empty", here);
      drops_first_spaces_ = component->contains("prepend_scheme")
                                ? string_field(*component, "prepend_scheme", here) != "never"
                                : bool_field(*component, "add_prefix_space", true, here);
      continue;
    }
    size_t position = 0;
    while (position < std::size(kOrder) && type != kOrder[position]) ++position;
    require(position < std::size(kOrder),
            "{}: '{}' is not supported; Sequence, ByteLevel, Metaspace, Replace, ByteFallback, "
            "Fuse and Strip are",
            where, type);
    require(position > stage || (position == stage && type == "Replace"),
            "{}: it is supported only in the order Replace, ByteFallback, Fuse, Strip", here);
    const size_t stage_before = std::exchange(stage, position);
    if (type == "Replace") {
      const Json& pattern = field(*component, "pattern", here);
      replacements_.emplace_back(string_field(pattern, "String", here + ": pattern"),
                                 string_field(*component, "content", here));
      require(!replacements_.back().first.empty(), "{}: the pattern is empty", here);
    } else if (type == "ByteFallback") {
      byte_fallback_ = true;
    } else if (type == "Strip") {
      const Json& start = field(*component, "start", here);
      const Json& stop = field(*component, "stop", here);
      require(stage_before == kFuse && stop == 0 && start.is_number_unsigned() && start < 1000,
              "{}: it is supported only after Fuse, with a start of 0 to 999 and a stop of 0",
              here);
      stripped_ = string_field(*component, "content", here);
      require(!stripped_.empty(), "{}: the content is empty", here);
      max_stripped_ = start.get<int>();
    }
  }
}

void TokenTexts::set(int32_t id, std::string_view token, bool special) {
  if (id >= size()) entries_.resize(static_cast<size_t>(id) + 1);
  Entry& entry = entries_[static_cast<size_t>(id)];
  entry = {static_cast<uint32_t>(bytes_.size()), 0, true, special, false};
  // A token that the alphabet does not spell, such as an added one with a space, is its own text.
  if (!byte_level_ || !append_spelled_bytes(token, bytes_)) {
    std::string text(token);
    work_ += max_work(token.size()) - max_work(0);
    for (const auto& [what, with] : replacements_) text = replace_all(text, what, with, work_);
    if (const int byte = byte_fallback_ ? named_byte(text) : -1; byte >= 0) {
      entry.byte = true;
      text.assign(1, static_cast<char>(byte));
    }
    bytes_ += text;
  }
  entry.len = static_cast<uint32_t>(bytes_.size()) - entry.begin;
}

}  // namespace nanovllm
