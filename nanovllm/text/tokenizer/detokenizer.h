#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "nanovllm/text/tokenizer/decoder.h"

namespace nanovllm {

struct TokenizerJson;
class Tokenizer;

/// The text that each token decodes to.
class TokenTexts {
 public:
  /// Throws UserError that names what is not supported.
  explicit TokenTexts(const TokenizerJson& json) : decoder_(json) {}

  /// Sets the text of a token. A later call for the same id replaces it.
  void set(int32_t id, std::string_view token, bool special);

  int32_t size() const { return static_cast<int32_t>(entries_.size()); }
  bool contains(int32_t id) const { return id >= 0 && id < size() && entry(id).known; }
  bool is_special(int32_t id) const { return contains(id) && entry(id).special; }
  /// The text of an id for which contains() is true.
  std::string_view text(int32_t id) const {
    return {bytes_.data() + entry(id).begin, entry(id).len};
  }

 private:
  friend class Detokenizer;
  struct Entry {
    uint32_t begin = 0, len = 0;  // in bytes_
    bool known = false, special = false;
    bool is_byte = false;  // one byte of a character that the vocabulary lacks ("<0x0A>")
  };
  const Entry& entry(int32_t id) const { return entries_[static_cast<size_t>(id)]; }

  Decoder decoder_;
  std::vector<Entry> entries_;
  std::string bytes_;
  WorkBudget budget_;  // for the decoder's work on all tokens
};

/// Decodes one answer token by token. The pieces that push() and finish() return, joined, are
/// Tokenizer::decode() of all ids (unless they continue a text), and each is valid UTF-8 by itself:
/// the bytes of a character that is not complete are held back. The tokenizer must outlive it.
class Detokenizer {
 public:
  Detokenizer(const Tokenizer& tokenizer, bool skip_special_tokens);

  /// Says that the ids continue a text, so the first one keeps the space that the decoder removes
  /// from the start of a text. Call it before push().
  void continue_text() { decoding_.continue_text(); }
  /// Keeps these special tokens in the text, even if others are left out.
  void show(std::vector<int32_t> special_ids) { shown_ = std::move(special_ids); }
  /// The text that is certain after this token: often the token's own, sometimes none.
  std::string push(int32_t id);
  /// The bytes that are held back.
  std::string pending() const { return decoding_.pending(); }
  /// Returns the text that was held back, with U+FFFD for an incomplete character. Call nothing
  /// after it.
  std::string finish() { return decoding_.finish(); }

 private:
  // Whether the text leaves the special token out.
  bool skips(int32_t id) const;

  const TokenTexts& texts_;
  const bool skip_special_tokens_;
  std::vector<int32_t> shown_;  // special tokens that are not left out
  Decoding decoding_;
};

}  // namespace nanovllm
