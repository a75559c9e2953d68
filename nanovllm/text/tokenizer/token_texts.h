#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "nanovllm/base/json.h"
#include "nanovllm/text/pre_tokenizer/normalizer.h"

namespace nanovllm {

/// What each token decodes to, by tokenizer.json's `decoder`: ByteLevel, Metaspace, or a Sequence
/// of Replace, ByteFallback, Fuse and Strip in this order. How the texts of several tokens are put
/// together is Detokenizer's part.
class TokenTexts {
 public:
  /// Throws UserError, beginning with `where`, that names what is not supported.
  TokenTexts(const Json& decoder, const std::string& where);

  /// Later calls for the same id win.
  void set(int32_t id, std::string_view token, bool special);

  int32_t size() const { return static_cast<int32_t>(entries_.size()); }
  bool contains(int32_t id) const {
    return id >= 0 && id < size() && entries_[static_cast<size_t>(id)].known;
  }
  bool is_special(int32_t id) const {
    return contains(id) && entries_[static_cast<size_t>(id)].special;
  }

  /// For an id that it contains.
  std::string_view text(int32_t id) const {
    const Entry& entry = entries_[static_cast<size_t>(id)];
    return {bytes_.data() + entry.begin, entry.len};
  }
  /// Whether the text is one byte of a character that the vocabulary lacks ("<0x0A>").
  bool is_byte(int32_t id) const { return entries_[static_cast<size_t>(id)].byte; }

  /// Texts are bytes; characters may span tokens.
  bool byte_level() const { return byte_level_; }
  /// Metaspace: what texts have in place of spaces, and whether the first token's are dropped; else
  /// empty.
  const std::string& metaspace() const { return metaspace_; }
  bool drops_first_spaces() const { return drops_first_spaces_; }
  /// Strip: a character, and how many of it at most are cut from the start of the whole.
  const std::string& stripped() const { return stripped_; }
  int max_stripped() const { return max_stripped_; }

 private:
  struct Entry {
    uint32_t begin = 0, len = 0;  // in bytes_
    bool known = false, special = false, byte = false;
  };
  std::vector<Entry> entries_;
  std::string bytes_;

  bool byte_level_ = false, byte_fallback_ = false, drops_first_spaces_ = false;
  std::vector<std::pair<std::string, std::string>> replacements_;
  std::string metaspace_, stripped_;
  int max_stripped_ = 0;
  size_t work_ = max_work(0);  // of the replacements, for all tokens so far
};

}  // namespace nanovllm
