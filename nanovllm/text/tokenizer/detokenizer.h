#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "nanovllm/text/pre_tokenizer/normalizer.h"

namespace nanovllm {

struct TokenizerJson;
class Tokenizer;

/// The text that each token decodes to. It follows tokenizer.json's `decoder`: ByteLevel,
/// Metaspace, or a Sequence of Replace, ByteFallback, Fuse and Strip in this order.
class TokenTexts {
 public:
  /// Throws UserError that names what is not supported.
  explicit TokenTexts(const TokenizerJson& json);

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
    bool byte = false;  // one byte of a character that the vocabulary lacks ("<0x0A>")
  };
  const Entry& entry(int32_t id) const { return entries_[static_cast<size_t>(id)]; }

  std::vector<Entry> entries_;
  std::string bytes_;
  WorkBudget budget_;  // of the replacements in all tokens

  bool byte_level_ = false;  // texts are bytes, and a character may span tokens
  bool byte_fallback_ = false;
  std::vector<std::pair<std::string, std::string>> replacements_;
  std::string metaspace_;            // what tokens have instead of spaces; may be empty
  bool drops_first_spaces_ = false;  // Metaspace: the first token has no leading spaces
  std::string stripped_;             // Strip: what is removed from the start of the whole text,
  int max_stripped_ = 0;             // at most this many times
};

/// Decodes one answer token by token. The pieces that push() and finish() return, joined, are
/// Tokenizer::decode() of all ids (unless they continue a text), and each is valid UTF-8 by itself:
/// the bytes of a character that is not complete are held back. The tokenizer must outlive it.
class Detokenizer {
 public:
  Detokenizer(const Tokenizer& tokenizer, bool skip_special_tokens);

  /// The ids continue a text, so the first one keeps the space that Metaspace and Strip remove from
  /// the start of a text. Call it before push().
  void continue_text();
  /// The text that is certain after this token: often the token's own, sometimes none.
  std::string push(int32_t id);
  /// The bytes that are held back.
  std::string_view pending() const { return pending_; }
  /// Returns what was held back: U+FFFD for an incomplete character. Call nothing after it.
  std::string finish();

 private:
  // The byte tokens that were held back, as text: U+FFFD for each if they are not valid UTF-8.
  std::string take_bytes();
  // Removes what the decoder's Strip removes from the start of the whole text.
  std::string strip(std::string text);

  const TokenTexts& texts_;
  const bool skip_special_tokens_;
  bool at_start_ = true;
  int strips_left_;
  std::string pending_;  // bytes held back
};

}  // namespace nanovllm
