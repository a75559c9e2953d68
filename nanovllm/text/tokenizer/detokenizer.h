#pragma once

#include <cstdint>
#include <string>

namespace nanovllm {

class Tokenizer;
class TokenTexts;

/// Decodes one answer token by token. The pieces that push() and finish() return, joined, are
/// Tokenizer::decode() of all ids, and each is valid UTF-8 by itself: bytes of a character that is
/// not complete are kept back. The tokenizer must outlive it.
class Detokenizer {
 public:
  Detokenizer(const Tokenizer& tokenizer, bool skip_special_tokens);

  /// The text that became certain with this token, often the token's own, sometimes none.
  std::string push(int32_t id);
  /// What was kept back: U+FFFD for a character that was cut off. Nothing may be pushed after it.
  std::string finish();

 private:
  // The byte tokens kept back, as text: U+FFFD for each where they are not well-formed.
  std::string take_bytes();
  // Cuts from the start of the whole what the decoder's Strip cuts.
  std::string strip(std::string text);

  const TokenTexts& texts_;
  const bool skip_special_tokens_;
  bool at_start_ = true;
  int strip_;            // characters that may still be stripped from the start of the text
  std::string pending_;  // bytes kept back
};

}  // namespace nanovllm
