#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "nanovllm/text/pre_tokenizer/pattern.h"

namespace nanovllm {

struct Component;
struct TokenizerJson;

/// tokenizer.json's `pre_tokenizer`: splits a text into the pieces that BPE encodes one by one.
/// Null does not split.
class PreTokenizer {
 public:
  /// Throws UserError that names what is not supported.
  explicit PreTokenizer(const TokenizerJson& json);

  /// Whether the vocabulary is spelled in the byte-level alphabet, and pieces are plain bytes.
  bool byte_level() const { return byte_level_; }

  using OnPiece = std::function<void(std::string_view)>;
  /// Calls on_piece for each piece of well-formed `text` in turn. No piece is empty, and a piece
  /// is valid only during the call. `at_start`: the text is the beginning of the user's text.
  void split(std::string_view text, bool at_start, const OnPiece& on_piece) const;

 private:
  // What happens to the matches of a pattern. With `invert` the text between matches is the match.
  enum Behavior { kIsolated, kRemoved, kMergedWithPrevious, kMergedWithNext, kContiguous };
  struct Split {
    Pattern pattern;
    Behavior behavior = kIsolated;
    bool invert = false;
  };
  // Spaces become `replacement`, and a text that does not begin with it gets one in front: every
  // text, only the first one, or none, depending on `scheme`. ByteLevel's add_prefix_space is a
  // Metaspace whose replacement is a space.
  struct Metaspace {
    std::string replacement, scheme;
    Pattern space = literal_pattern(" ");
  };
  // Each byte becomes its character of the byte-level alphabet.
  struct Spelling {};

  static Behavior behavior_of(const Component& component);
  // Each of these functions adds the stages of a component.
  void add_bert(const Component&);
  void add_byte_level(const Component& component);
  void add_char_delimiter_split(const Component& component);
  void add_digits(const Component& component);
  void add_fixed_length(const Component& component);
  void add_metaspace(const Component& component);
  void add_punctuation(const Component& component);
  void add_split(const Component& component);
  void add_whitespace(const Component&);
  void add_whitespace_split(const Component&);
  void add(Pattern pattern, Behavior behavior, bool invert = false) {
    stages_.emplace_back(Split{std::move(pattern), behavior, invert});
  }

  // Runs the stages from `stage` on for one piece.
  void run(size_t stage, std::string_view text, bool at_start, WorkBudget& budget,
           const OnPiece& on_piece) const;
  static void run(const Split& split, std::string_view text, const OnPiece& on_piece);

  std::vector<std::variant<Split, Metaspace, Spelling>> stages_;
  bool byte_level_ = false;
};

}  // namespace nanovllm
