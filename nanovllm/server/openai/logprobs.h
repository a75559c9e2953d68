#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "nanovllm/base/output.h"
#include "nanovllm/text/tokenizer/tokenizer.h"

// Log-probabilities in the three forms of OpenAI's and vLLM's responses, appended to a buffer.
namespace nanovllm::server {

/// What a token decodes to. It need not be valid UTF-8: a token may be a part of a character.
using TokenText = std::function<std::string(int32_t)>;
/// Without a tokenizer, all texts are empty.
TokenText token_text_of(std::shared_ptr<const Tokenizer> tokenizer);

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
/// characters; it begins at `offset`, which is moved behind the last token. The first token of a
/// prompt has null as its log-probability.
void append_completion_logprobs(std::string& to, const TokensView& prompt, const TokensView& answer,
                                const TokenText& text, size_t& offset);

/// vLLM's list for the tokens of a prompt: null for the first one, then for each one an object
/// {"<id>": {"logprob", "rank", "decoded_token"}} with the token itself first.
void append_prompt_logprobs(std::string& to, std::span<const TokenLogprobs> logprobs,
                            const TokenText& text);

}  // namespace nanovllm::server
