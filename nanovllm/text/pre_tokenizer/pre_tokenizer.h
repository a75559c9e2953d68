#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace nanovllm {

struct JsonObject;
struct TokenizerJson;

/// tokenizer.json's `pre_tokenizer`: splits a text into the pieces that BPE encodes one by one. It
/// is a Sequence, Split, ByteLevel (only as the last one) or Metaspace. Null does not split.
class PreTokenizer {
 public:
  /// Throws UserError that names what is not supported.
  explicit PreTokenizer(const TokenizerJson& json);

  /// Whether the vocabulary is spelled in the byte-level alphabet. Pieces are plain bytes in both
  /// cases.
  bool byte_level() const { return byte_level_; }

  using OnPiece = std::function<void(std::string_view)>;
  /// Calls on_piece for each piece of well-formed `text` in turn. No piece is empty, and a piece
  /// is valid only during the call. `at_start`: the text is the beginning of the user's text.
  void split(std::string_view text, bool at_start, const OnPiece& on_piece) const {
    run(0, text, at_start, on_piece);
  }

 private:
  using OnMatch = std::function<void(size_t begin, size_t end)>;
  /// Calls on_match for each match in a text, from left to right, without overlaps.
  using Pattern = std::function<void(std::string_view text, const OnMatch& on_match)>;

  struct Split {
    enum Behavior { kIsolated, kRemoved, kMergedWithPrevious, kMergedWithNext, kContiguous };
    Pattern pattern;
    Behavior behavior = kIsolated;
    bool invert = false;
  };
  // Spaces become `replacement`, and a text that does not begin with it gets one in front: every
  // text, only the first one, or none, depending on `scheme`. ByteLevel's add_prefix_space is the
  // same with a space as replacement.
  struct Metaspace {
    std::string replacement, scheme;
  };

  static Pattern literal_pattern(const std::string& literal);
  static Pattern regex_pattern(const std::string& regex, const std::string& where);
  static Split make_split(const JsonObject& json);
  void add_metaspace(const JsonObject& json);
  // Runs the stages from `stage` on for one piece.
  void run(size_t stage, std::string_view text, bool at_start, const OnPiece& on_piece) const;
  static void run(const Split& split, std::string_view text, const OnPiece& on_piece);

  std::vector<std::variant<Split, Metaspace>> stages_;
  bool byte_level_ = false;
};

}  // namespace nanovllm
