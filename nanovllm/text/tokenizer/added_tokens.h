#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "nanovllm/text/tokenizer/flat_map.h"

namespace nanovllm {

struct TokenizerJson;

/// A token that is searched in the text before anything else, one of tokenizer.json's
/// `added_tokens`.
struct AddedToken {
  int32_t id = 0;
  std::string content;
  bool single_word = false;  ///< not found if a word continues before or after it
  bool lstrip = false;       ///< includes the white space before it
  bool rstrip = false;       ///< includes the white space after it
  bool normalized = true;    ///< searched in the normalized text
  bool special = false;      ///< left out of decoded text if the caller wants that
};

/// The added tokens of tokenizer.json and of tokenizer_config.json. A token of the latter replaces
/// one with the same content. Throws UserError if a token is invalid.
std::vector<AddedToken> read_added_tokens(const TokenizerJson& json);

/// Finds added tokens in a text: the leftmost one, and among several there the longest. It takes
/// linear time for any tokens: an automaton of Aho and Corasick ("Efficient string matching", 1975)
/// for the reversed tokens reads the text backwards, so at each position it knows the longest token
/// that begins there.
class AddedTokenFinder {
 public:
  /// Searches the `content` of each token. Throws UserError if these have more than kMaxBytes.
  explicit AddedTokenFinder(std::vector<AddedToken> tokens = {});

  /// A token, or the text between two tokens, whose id is -1.
  struct Part {
    int32_t id;
    std::string_view text;
  };
  /// Splits all of `text`, which is well-formed UTF-8. Texts between tokens are not empty.
  std::vector<Part> split(std::string_view text) const;

  /// The most bytes of all tokens. The automaton takes about sixty times this memory. Published
  /// tokenizers have a few kilobytes.
  static constexpr size_t kMaxBytes = size_t{4} << 20;

 private:
  static constexpr int32_t kNoToken = -1;
  struct Node {
    uint32_t fail = 0;         // the longest proper suffix (read backwards) that is a node too
    int32_t token = kNoToken;  // the longest token that begins here
  };
  uint32_t next(uint32_t node, char byte) const;

  struct Start {
    uint32_t at;
    int32_t token;
  };
  std::vector<Start> starts(std::string_view text) const;  // from right to left

  std::vector<AddedToken> tokens_;
  std::vector<Node> nodes_{1};       // a node is the end of a token, read backwards
  FlatMap children_;                 // child nodes by node and byte
  std::array<bool, 256> is_last_{};  // whether a token ends with the byte
};

}  // namespace nanovllm
