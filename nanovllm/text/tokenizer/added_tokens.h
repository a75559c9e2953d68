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
  bool single_word = false;  ///< not where a word continues before or after it
  bool lstrip = false;       ///< takes the white space before it along
  bool rstrip = false;       ///< and the white space after it
  bool normalized = true;    ///< searched in the normalized text
  bool special = false;      ///< left out of decoded text if the caller wants that
};

/// The added tokens of tokenizer.json. Those of tokenizer_config.json are added to them or replace
/// those of the same content. Throws UserError.
std::vector<AddedToken> read_added_tokens(const TokenizerJson& json);

/// Finds added tokens in a text: the leftmost, and of those the longest. Takes linear time whatever
/// the tokens are: an automaton of Aho and Corasick ("Efficient string matching", 1975) reads the
/// text from its end to its beginning, for the tokens spelled backwards, and so knows at each place
/// the longest token that begins there.
class AddedTokenFinder {
 public:
  /// Searches the `content` of each token. Throws UserError for more than kMaxBytes of them.
  explicit AddedTokenFinder(std::vector<AddedToken> tokens = {});

  /// A token, or (id -1) the text between two.
  struct Part {
    int32_t id;
    std::string_view text;
  };
  /// All of `text`, which is well-formed UTF-8, in parts; those between tokens are not empty.
  std::vector<Part> split(std::string_view text) const;

  /// The automaton takes some sixty times as much memory. Published tokenizers have some kilobytes.
  static constexpr size_t kMaxBytes = size_t{4} << 20;

 private:
  static constexpr int32_t kNoToken = -1;
  struct Node {
    uint32_t fail = 0;         // the longest proper suffix (read backwards) that is a node too
    int32_t token = kNoToken;  // the longest one that begins here
  };
  uint32_t next(uint32_t node, char byte) const;

  struct Start {
    uint32_t at;
    int32_t token;
  };
  std::vector<Start> starts(std::string_view text) const;  // from right to left

  std::vector<AddedToken> tokens_;
  std::vector<Node> nodes_{1};       // what was read last, as far as some token ends with it
  FlatMap children_;                 // by node and byte
  std::array<bool, 256> is_last_{};  // bytes that some token ends with
};

}  // namespace nanovllm
