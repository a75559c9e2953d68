#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "nanovllm/text/tokenizer/token_table.h"
#include "nanovllm/text/tokenizer/tokenizer_json.h"

namespace nanovllm {

/// The byte-level alphabet (GPT-2): each byte as a printable character. What `token` spells in it,
/// appended to `bytes`; false, and nothing appended, where a character is not of the alphabet.
bool append_spelled_bytes(std::string_view token, std::string& bytes);

/// Byte-pair encoding (Sennrich et al., 2016): of all neighbours that may merge, the pair of the
/// lowest rank does, the leftmost of equals first, until none may.
class Bpe {
 public:
  /// From `json.fields["model"]`, its vocabulary and merges. `byte_level`: tokens are spelled in
  /// the byte-level alphabet. Throws UserError, beginning with `where`.
  Bpe(const TokenizerJson& json, bool byte_level, const std::string& where);

  /// Appends the ids of a piece, which is not empty, and well-formed UTF-8.
  void encode(std::string_view piece, std::vector<int32_t>& ids) const;

  /// The id of a token as the vocabulary spells it; -1 if there is none.
  int32_t token_to_id(std::string_view token) const;

 private:
  // Two neighbours, and what becomes of them: rank << 32 | id, so that the lower one merges first.
  struct Merge {
    uint64_t pair = kNone;
    uint64_t value = kNone;
  };
  static constexpr uint64_t kNone = ~uint64_t{0};
  enum Direct : uint8_t { kUnknown, kYes, kNo };

  void add_tokens(const TokenizerJson& json, const std::string& where);
  bool append_bytes(std::string_view token, std::string& bytes) const;
  void add_merges(const TokenizerJson& json, const std::string& where);
  size_t merge_slot(uint64_t pair) const;
  uint64_t merge_of(int32_t left, int32_t right) const;
  void encode_word(std::string_view word, std::vector<int32_t>& ids) const;
  bool is_direct(int32_t id, std::string_view piece) const;
  // The ids of the piece's characters, at most one for each byte, to `symbols`; returns how many.
  size_t first_symbols(std::string_view piece, int32_t* symbols) const;
  void merge_short(std::string_view piece, std::vector<int32_t>& ids) const;
  void merge_long(std::string_view piece, std::vector<int32_t>& ids) const;

  bool byte_level_, byte_fallback_, fuse_unk_, ignore_merges_;
  bool splits_at_spaces_ = false;  // no merge reaches from another character to a U+2581 behind it
  int32_t unk_ = -1;
  TokenTable tokens_;  // by the bytes that a piece has
  std::unordered_map<std::string, int32_t>
      unspelled_;                              // tokens outside the alphabet: no piece holds them
  std::array<int32_t, 256> symbol_of_byte_;    // of a byte, or of an ASCII character; -1: none
  std::array<int32_t, 256> fallback_of_byte_;  // "<0x00>" to "<0xFF>"; -1: none
  std::vector<Merge> merges_;                  // open addressing
  int merge_shift_;
  // Whether a token's bytes encode to that token alone. Merges decide it, nearly always for it;
  // found out on first use.
  std::unique_ptr<std::atomic<uint8_t>[]> direct_;
};

}  // namespace nanovllm
