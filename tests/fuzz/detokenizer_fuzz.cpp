// Streams of ids, two bytes each, through the incremental detokenizer; the first byte of the input
// chooses the tokenizer, and whether special tokens are skipped.

#include "nanovllm/text/tokenizer/detokenizer.h"

#include <cstring>

#include "nanovllm/base/check.h"
#include "nanovllm/base/strings/utf8.h"
#include "nanovllm/text/tokenizer/tokenizer.h"
#include "tests/fuzz/fuzz.h"

namespace nanovllm {
namespace {

// The tokens of the byte-level tokenizer are bytes; the other tokenizer has whole characters, byte
// tokens, and spaces to strip.
const Tokenizer& tokenizer(bool byte_level) {
  static const auto tiny_tales = Tokenizer::load(kTinyTales);
  static const auto sentence_piece = Tokenizer::parse(R"({
      "added_tokens": [{"id": 0, "content": "<s>", "special": true}, {"id": 1, "content": "<x>"}],
      "decoder": {"type": "Sequence", "decoders": [{"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
          {"type": "ByteFallback"}, {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 2, "stop": 0}]},
      "model": {"merges": [], "vocab": {"<s>": 0, "▁": 2, "▁a": 3, "▁▁": 4, "é": 5, "": 6, "<0x20>": 7, "<0x41>": 8,
          "<0xC3>": 9, "<0xA9>": 10, "<0xF0>": 11, "<0x9F>": 12, "<0x98>": 13, "<0x80>": 14}}})",
                                                      "sentence piece");
  return byte_level ? *tiny_tales : *sentence_piece;
}

// The text of all ids, decoded at once.
std::string spelled(const TokenTexts& texts, const std::vector<int32_t>& ids, bool skip) {
  std::string bytes, text;
  for (const int32_t id : ids)
    if (texts.contains(id) && !(skip && texts.is_special(id))) bytes += texts.text(id);
  append_utf8(text, bytes, /*at_end=*/true);
  return text;
}

}  // namespace
}  // namespace nanovllm

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace nanovllm;
  if (size == 0) return 0;
  const bool skip = (data[0] & 1) != 0, byte_level = (data[0] & 2) == 0;
  const Tokenizer& source = tokenizer(byte_level);
  std::vector<int32_t> ids;
  for (size_t at = 1; at + 2 <= size; at += 2) {
    int16_t id;  // unknown ones too: below 0 and past the vocabulary
    std::memcpy(&id, data + at, sizeof id);
    ids.push_back(byte_level ? id : id % 17 - 1);
  }

  Detokenizer detokenizer(source, skip);
  std::string text;
  for (size_t i = 0; i < ids.size(); ++i) {
    const std::string piece = detokenizer.push(ids[i]);
    check(is_utf8(piece), "piece {} is not UTF-8", i);
    text += piece;
    if (i % 8 != 0) continue;
    // The stream may end anywhere.
    Detokenizer ended = detokenizer;
    check(text + ended.finish() == source.decode(std::span(ids).first(i + 1), skip),
          "the pieces up to {} are not the text of their ids", i);
  }
  const std::string last = detokenizer.finish();
  check(is_utf8(last), "the last piece is not UTF-8");
  check(text + last == source.decode(ids, skip), "the pieces joined are not the whole text");
  if (byte_level)
    check(text + last == spelled(source.token_texts(), ids, skip), "not the text of the ids");
  return 0;
}
