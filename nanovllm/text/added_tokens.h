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

/// Finds added tokens: the leftmost, of those the longest.
class AddedTokenFinder {
 public:
  struct Pattern {
    std::string text;  // the token's content, normalized where the searched text is
    AddedToken token;
  };
  explicit AddedTokenFinder(std::vector<Pattern> patterns);

  /// A token, or (id -1) the text between.
  struct Part {
    int32_t id;
    std::string_view text;
  };
  /// All of `text`, which is well-formed UTF-8, in parts; those of text are not empty.
  std::vector<Part> split(std::string_view text) const;

 private:
  const Pattern* longest_at(std::string_view text) const;

  std::vector<Pattern> patterns_;     // sorted by text
  std::array<bool, 256> is_first_{};  // bytes that some pattern begins with
};

}  // namespace nanovllm
