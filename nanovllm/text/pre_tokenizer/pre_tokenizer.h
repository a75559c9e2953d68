#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "nanovllm/base/json.h"
#include "nanovllm/text/pre_tokenizer/regex.h"

namespace nanovllm {

/// tokenizer.json's `pre_tokenizer`: cuts a text into the pieces that BPE works on, each by itself.
/// Sequence, Split, ByteLevel (last, if at all) and Metaspace; null leaves the text whole.
class PreTokenizer {
 public:
  /// Throws UserError, beginning with `where`, that names what is not supported.
  PreTokenizer(const Json& json, const std::string& where);

  /// Whether tokens are spelled in the byte-level alphabet; pieces are the plain bytes all the
  /// same.
  bool byte_level() const { return byte_level_; }

  using OnPiece = std::function<void(std::string_view)>;
  /// Calls on_piece for each piece of well-formed `text` in turn; none is empty, and they last for
  /// the call only. `at_start`: the text begins what the caller gave.
  void split(std::string_view text, bool at_start, const OnPiece& on_piece) const {
    run(0, text, at_start, on_piece);
  }

 private:
  struct Split {
    enum Behavior { kIsolated, kRemoved, kMergedWithPrevious, kMergedWithNext, kContiguous };
    // What is looked for: a literal, words of up to so many digits (words.h), or a regular
    // expression.
    std::variant<std::string, int, Regex> pattern;
    Behavior behavior;
    bool invert;
  };
  // Spaces become `replacement`, and a piece that does not begin with it gets one in front.
  // ByteLevel's add_prefix_space is the same with a space for it.
  struct Metaspace {
    std::string replacement;
    enum Prepend { kAlways, kFirst, kNever } prepend;
  };
  using Stage = std::variant<Split, Metaspace>;

  static Split make_split(const Json& json, const std::string& where);
  static Split make_regex_split(const std::string& regex, const std::string& where);
  // The stages from `stage` on, on one piece.
  void run(size_t stage, std::string_view text, bool at_start, const OnPiece& on_piece) const;
  static void run(const Split& split, std::string_view text, const OnPiece& on_piece);

  std::vector<Stage> stages_;
  bool byte_level_ = false;
};

}  // namespace nanovllm
