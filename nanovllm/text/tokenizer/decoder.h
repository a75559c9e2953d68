#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "nanovllm/text/pre_tokenizer/pattern.h"

namespace nanovllm {

struct Component;
struct TokenizerJson;

/// tokenizer.json's `decoder`: steps that turn the texts of tokens into the text of an answer. Null
/// puts a space between tokens.
class Decoder {
 public:
  /// Throws UserError that names what is not supported.
  explicit Decoder(const TokenizerJson& json);

  /// A token's text after the steps that need no other token.
  struct Token {
    std::string text;      ///< bytes of characters that may span tokens if the next step joins them
    bool is_byte = false;  ///< one byte of a character that the vocabulary lacks ("<0x0A>")
  };
  Token prepare(std::string_view token, WorkBudget& budget) const;

 private:
  friend class Decoding;
  enum Kind {
    kBpe,           // `text` becomes a space, or nothing at the end of the last token
    kByteFallback,  // "<0x0A>" becomes a byte; a run of them is text if it is UTF-8 as a whole
    kByteLevel,     // what tokens spell in the byte-level alphabet, as one token
    kCtc,           // leaves out repeated tokens and `text`; `other` becomes a space
    kFuse,          // all tokens become one
    kJoin,          // a space before every token but the first
    kMetaspace,     // `text` becomes a space, or nothing in the first token
    kReplace,       // each match of `pattern` becomes `text`
    kStrip,         // removes `text` up to `start` times at the start and `stop` times at the end
    kWordPiece      // a space before every token but the first and those that begin with `text`
  };
  struct Step {
    Kind kind;
    std::string text{}, other{};
    Pattern pattern{};
    size_t start = 0, stop = 0;
    bool cleans_up = false;     // kCtc, kWordPiece: removes spaces before punctuation
    bool drops_first = false;   // kMetaspace
    bool is_character = false;  // kReplace: the pattern is one character
  };

  void add_bpe(const Component& component);
  void add_byte_fallback(const Component&);
  void add_byte_level(const Component&);
  void add_ctc(const Component& component);
  void add_fuse(const Component&);
  void add_metaspace(const Component& component);
  void add_replace(const Component& component);
  void add_strip(const Component& component);
  void add_word_piece(const Component& component);

  std::vector<Step> steps_;
  size_t num_prepared_ = 0;  // how many of the steps prepare() does
};

/// One answer on its way through the steps. A step gets each token in one or more parts, so that
/// the text goes on at once even if Fuse or ByteLevel joins all tokens. Steps that need whole
/// tokens hold the parts back.
class Decoding {
 public:
  /// The decoder must outlive it.
  explicit Decoding(const Decoder& decoder);

  /// Says that the tokens continue a text, so that the first token is not at the start of a text.
  void continue_text();
  /// The text that is certain after this token. It is valid UTF-8.
  std::string push(std::string_view text, bool is_byte);
  /// The text that is held back.
  std::string pending() const;
  /// Returns the text that was held back, with U+FFFD for an incomplete character. Call nothing
  /// after it.
  std::string finish();

 private:
  using Step = Decoder::Step;
  struct State {
    std::string part;       // the part so far of a token that the step needs as a whole
    std::string held;       // bytes that are no text yet, or the token before (kBpe)
    std::string last;       // the token before (kCtc)
    size_t num_tokens = 0;  // tokens that have ended
    size_t num_left = 0;    // kStrip: how often the token's start may be removed
  };

  // Gives the step a part of a token.
  void give(size_t step, std::string_view text, bool ends_token);
  void give_token(size_t step, const Step& settings, State& state, std::string text);
  void give_bytes(size_t step, State& state, std::string_view bytes);
  // Gives the next step the run of byte tokens that has ended.
  void end_bytes(size_t step);
  void end(size_t step);
  std::string replaced(std::string_view text, const Pattern& pattern, std::string_view with);

  const Decoder* decoder_;
  std::vector<State> states_;
  WorkBudget budget_;
  std::string out_;
};

}  // namespace nanovllm
