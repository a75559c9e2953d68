#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "nanovllm/base/output.h"
#include "nanovllm/text/tokenizer/tokenizer.h"

// Log-probabilities in the three forms of OpenAI's and vLLM's responses, appended to a buffer.
namespace nanovllm::server {

/// What a token decodes to. It need not be valid UTF-8: a token may be a part of a character.
using TokenText = std::function<std::string(int32_t)>;
/// Without a tokenizer, all texts are empty.
TokenText token_text_of(std::shared_ptr<const Tokenizer> tokenizer);
/// What a token adds to the text of an answer: a special token that is skipped adds nothing.
TokenText answer_text_of(std::shared_ptr<const Tokenizer> tokenizer, bool skip_special_tokens);

/// The place in a text, in characters, where the next token begins.
class TextOffset {
 public:
  /// Moves behind a token. A part of a character counts when the character is complete, or as a
  /// U+FFFD if the text ends or goes on otherwise.
  void add(std::string_view token, bool at_end = false);
  int64_t num_chars() const { return num_chars_; }

 private:
  int64_t num_chars_ = 0;
  std::string rest_;  // the beginning of a character
};

/// Tokens and, if they were asked for, the log-probabilities at their positions; else `logprobs` is
/// empty.
struct TokensView {
  std::span<const int32_t> ids;             // [num_tokens]
  std::span<const TokenLogprobs> logprobs;  // [num_tokens] or [0]

  /// What an update adds. The view is valid as long as the update.
  static TokensView of(const RequestUpdate& update) {
    return {update.token_ids, {&update.logprobs, update.logprobs.empty() ? size_t{0} : size_t{1}}};
  }
};

/// {"content": [{"token", "logprob", "bytes", "top_logprobs"}], "refusal": null} of the chat API;
/// null without logprobs. "bytes" are what the token decodes to, even if it is no valid UTF-8.
void append_chat_logprobs(std::string& to, const TokensView& tokens, const TokenText& text);

/// {"tokens", "token_logprobs", "top_logprobs", "text_offset"} of the completions API, for the
/// prompt (if it is echoed, else empty) and the answer; null without logprobs. "text_offset" counts
/// characters of `text` and, for the answer, of `answer_text` (if there is one); it begins at
/// `offset`, which is moved behind the last token. The first token of a prompt has null as its
/// log-probability.
void append_completion_logprobs(std::string& to, const TokensView& prompt, const TokensView& answer,
                                const TokenText& text, const TokenText& answer_text,
                                TextOffset& offset);

/// vLLM's list for the tokens of a prompt: null for the first one, then for each one an object
/// {"<id>": {"logprob", "rank", "decoded_token"}} with the token itself first.
void append_prompt_logprobs(std::string& to, std::span<const TokenLogprobs> logprobs,
                            const TokenText& text);

}  // namespace nanovllm::server
