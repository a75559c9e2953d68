#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace nanovllm {

/// A token that is looked for in the text before anything else, as tokenizer.json's `added_tokens`
/// has it.
struct AddedToken {
  int32_t id = 0;
  std::string content;
  bool single_word = false;  ///< not where a word goes on before or after it
  bool lstrip = false;       ///< takes the white space before it along
  bool rstrip = false;       ///< and behind it
  bool normalized = true;    ///< looked for in the normalized text
  bool special = false;      ///< left out of decoded text if asked
};

/// Finds added tokens: the leftmost, of those the longest. In linear time whatever the tokens are:
/// an automaton of Aho and Corasick ("Efficient string matching", 1975) reads the text from its end
/// to its beginning, for the tokens spelled backwards, and so knows at each place the longest token
/// that begins there.
class AddedTokenFinder {
 public:
  struct Pattern {
    std::string text;  // the token's content, normalized where the searched text is
    AddedToken token;
  };
  /// Throws UserError for more than kMaxBytes of texts.
  explicit AddedTokenFinder(std::vector<Pattern> patterns);

  /// A token, or (id -1) the text between.
  struct Part {
    int32_t id;
    std::string_view text;
  };
  /// All of `text`, which is well-formed UTF-8, in parts; those of text are not empty.
  std::vector<Part> split(std::string_view text) const;

  /// The automaton takes sixteen times as much. Published tokenizers have some kilobytes.
  static constexpr size_t kMaxBytes = size_t{16} << 20;

 private:
  /// What was read last, as far as some token ends with it. The nodes that go on from a node stand
  /// one behind the other, in the order of their bytes, up to the first of the node behind it.
  struct Node {
    uint32_t first_child = 0;
    uint32_t fail = 0;       // the longest proper suffix (read backwards) that is a node too
    int32_t longest = -1;    // the longest token that begins here; an index of patterns_
    unsigned char byte = 0;  // that leads to it
  };
  void add_nodes(size_t num_bytes);
  uint32_t child(uint32_t node, char byte) const;  // 0: there is none
  uint32_t next(uint32_t node, char byte) const;

  struct Start {
    uint32_t at;
    int32_t pattern;
  };
  std::vector<Start> starts(std::string_view text) const;  // from right to left

  std::vector<Pattern> patterns_;    // sorted by their texts read backwards
  std::vector<Node> nodes_;          // breadth first; the last one only ends the children
  std::array<bool, 256> is_last_{};  // bytes that some token ends with
};

}  // namespace nanovllm
