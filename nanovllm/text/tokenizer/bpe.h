#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "nanovllm/text/tokenizer/token_table.h"

namespace nanovllm {

struct TokenizerJson;

/// Byte-pair encoding (Sennrich et al., 2016): among all neighbours that can merge, the pair with
/// the lowest rank is merged, and the leftmost one if several have it, until no pair can merge.
class Bpe {
 public:
  /// `byte_level`: tokens are spelled in the byte-level alphabet. Throws UserError if the model is
  /// invalid or not supported.
  Bpe(const TokenizerJson& json, bool byte_level);

  /// Whether the model can be `byte_level`, because it treats a byte like any other character.
  static bool takes_bytes(const TokenizerJson& json);

  /// Appends the ids of a piece, which is not empty and well-formed UTF-8.
  void encode(std::string_view piece, std::vector<int32_t>& ids) const;

  /// The id of a token as the vocabulary spells it; -1 if there is none.
  int32_t token_to_id(std::string_view token) const;

 private:
  enum Direct : uint8_t { kUnknown, kYes, kNo };

  void append_bytes(std::string_view token, std::string& bytes) const;
  TokenTable read_vocab(const TokenizerJson& json) const;
  FlatMap read_merges(const TokenizerJson& json) const;
  uint64_t merge_of(int32_t left, int32_t right) const;
  void encode_word(std::string_view word, std::vector<int32_t>& ids) const;
  bool is_direct(int32_t id, std::string_view word) const;
  // Merges the symbols of a word and appends what is left.
  void merge(std::string_view word, std::vector<int32_t>& ids) const;
  void merge_long(std::string_view word, std::vector<int32_t>& ids) const;
  // The most symbols that a word begins with: one for each byte, including those of affixes.
  size_t max_symbols(std::string_view word) const;
  // Writes the ids of the word's characters and returns how many.
  size_t first_symbols(std::string_view word, int32_t* symbols) const;

  bool byte_level_, byte_fallback_, fuse_unk_, ignore_merges_;
  // The token of a character that is not the first of a word has prefix_ in front; the token of the
  // last character has suffix_ at its end.
  std::string prefix_, suffix_;
  bool splits_at_spaces_;  // no merge reaches from another character to a U+2581 after it
  TokenTable tokens_;      // by their bytes in a piece
  // For the ids of two neighbours: rank << 32 | id of the merged token, so that the pair that
  // merges first has the lower value.
  FlatMap merges_;
  int32_t unk_ = -1;
  std::array<int32_t, 256> symbol_of_byte_;    // token of a byte or an ASCII character; -1: none
  std::array<int32_t, 256> fallback_of_byte_;  // tokens "<0x00>" to "<0xFF>"; -1: none
  // For each id, whether the merges turn the token's bytes into just that token, which is nearly
  // always true. It is computed at the first use.
  std::unique_ptr<std::atomic<uint8_t>[]> direct_;
};

}  // namespace nanovllm
