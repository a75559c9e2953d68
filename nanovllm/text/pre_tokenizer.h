#pragma once

#include <deque>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "nanovllm/base/json.h"
#include "nanovllm/text/regex.h"

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

  /// The pieces of well-formed `text`, none empty. They point into it, or into `storage` where it
  /// had to be changed. `at_start`: it begins what the caller gave.
  std::vector<std::string_view> split(std::string_view text, bool at_start,
                                      std::deque<std::string>& storage) const;

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
  using Pieces = std::vector<std::string_view>;

  static Split make_split(const Json& json, const std::string& where);
  static Split make_regex_split(const std::string& regex, const std::string& where);
  static Pieces run(const Split& split, const Pieces& pieces);
  static Pieces run(const Metaspace& metaspace, const Pieces& pieces, bool at_start,
                    std::deque<std::string>& storage);

  std::vector<Stage> stages_;
  bool byte_level_ = false;
};

}  // namespace nanovllm
