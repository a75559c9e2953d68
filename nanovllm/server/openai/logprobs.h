#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "nanovllm/base/output.h"
#include "nanovllm/text/tokenizer/tokenizer.h"

// Log-probabilities in the three forms of OpenAI's and vLLM's responses, appended to a buffer.
namespace nanovllm::server {

/// What a token decodes to. It need not be valid UTF-8: a token may be a part of a character.
using TokenText = std::function<std::string(int32_t)>;
/// Without a tokenizer, all texts are empty.
TokenText token_text_of(std::shared_ptr<const Tokenizer> tokenizer);
/// The place in a text, in characters, where the next token begins.
class TextOffset {
 public:
  /// `detokenizer`: of the tokens; without one, all texts are empty. `begin`: where the first one
  /// begins.
  explicit TextOffset(std::optional<Detokenizer> detokenizer = {}, int64_t begin = 0);
  /// Moves behind a token. A part of a character counts when the character is complete, or as a
  /// U+FFFD if the text goes on otherwise.
  void add(int32_t id);
  int64_t num_chars() const;

 private:
  std::optional<Detokenizer> detokenizer_;
  int64_t num_chars_;  // before the bytes that the detokenizer holds back
};

/// The number of characters of well-formed UTF-8.
int64_t num_chars_of(std::string_view text);
/// Where each token of a prompt begins in the prompt's text. `has_added_ids`: the text was encoded
/// with special tokens before and after it, which are no part of it.
std::vector<int64_t> offsets_of_prompt(const Tokenizer& tokenizer, std::span<const int32_t> ids,
                                       bool has_added_ids);

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

/// [{"token", "logprob", "bytes", "top_logprobs"}] of the chat and responses APIs.
void append_token_logprobs(std::string& to, const TokensView& tokens, const TokenText& text);
/// {"content": [{"token", "logprob", "bytes", "top_logprobs"}], "refusal": null} of the chat API;
/// null without logprobs. "bytes" are what the token decodes to, even if it is no valid UTF-8.
void append_chat_logprobs(std::string& to, const TokensView& tokens, const TokenText& text);

/// {"tokens", "token_logprobs", "top_logprobs", "text_offset"} of the completions API, for the
/// prompt (if it is echoed, else empty) and the answer; null without logprobs. "text_offset" has
/// `prompt_offsets` ([tokens of the prompt]) and, for the answer, begins at `offset`, which is
/// moved behind the last token. The first token of a prompt has null as its log-probability.
void append_completion_logprobs(std::string& to, const TokensView& prompt,
                                std::span<const int64_t> prompt_offsets, const TokensView& answer,
                                TextOffset& offset, const TokenText& text);

/// vLLM's list for the tokens of a prompt: null for the first one, then for each one an object
/// {"<id>": {"logprob", "rank", "decoded_token"}} with the token itself first.
void append_prompt_logprobs(std::string& to, std::span<const TokenLogprobs> logprobs,
                            const TokenText& text);

}  // namespace nanovllm::server
