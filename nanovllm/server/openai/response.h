#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "nanovllm/base/output.h"
#include "nanovllm/server/conversation/answer_parser.h"
#include "nanovllm/server/openai/logprobs.h"

// The whole responses of OpenAI's API, as JSON texts. chunks.h has those of streams. The
// additional fields are vLLM's: stop_reason, token_ids, prompt_token_ids, prompt_logprobs,
// reasoning_content.
namespace nanovllm::server {

/// What identifies a response.
struct ResponseHead {
  std::string id;       ///< "chatcmpl-..." or "cmpl-..."
  int64_t created = 0;  ///< seconds since 1970
  std::string model;    ///< the name under which the client asked for it
};

struct Usage {
  int64_t prompt_tokens = 0, completion_tokens = 0;
  int64_t cached_tokens = 0;  ///< prompt tokens found in the prefix cache

  /// Adds a prompt and all its answers.
  void add(const RequestOutput& output);
};
Usage usage_of(std::span<const RequestOutput> outputs);

/// What a response shows besides the answers.
struct ResponseOptions {
  TokenText token_text;  ///< needed for log-probabilities
  bool token_ids = false;
  bool prompt_logprobs = false;
};

/// The finish_reason for the client: "tool_calls" if the model stopped after calling a tool, else
/// that of the engine (stop, length, abort, error).
std::string_view finish_reason_of(std::string_view finish_reason, bool has_tool_calls);

/// A chat.completion. answers[i] is the text of output.outputs[i].
std::string chat_response(const ResponseHead& head, const RequestOutput& output,
                          std::span<const AnswerParts> answers, const ResponseOptions& options);

/// The answers to one prompt of a request for completions.
struct PromptAnswers {
  const RequestOutput* output = nullptr;
  std::string echo = {};  ///< the prompt's text, if answers begin with it
  /// Where its tokens begin in the text, if log-probabilities begin with those of the prompt.
  std::span<const int64_t> echo_offsets = {};
  TextOffset offset = TextOffset();  ///< where each answer's own tokens begin
  bool prompt_only = false;          ///< nothing of the answer is shown
};

/// A text_completion. The choices of the prompts follow each other; a choice has the index
/// (number of the prompt) * n + (number of the answer).
std::string completion_response(const ResponseHead& head, std::span<const PromptAnswers> prompts,
                                const ResponseOptions& options);

/// One model of /v1/models.
struct ServedModel {
  std::string name;
  int64_t created = 0;
  int64_t max_model_len = 0;
};
std::string model_response(const ServedModel& model);
std::string models_response(std::span<const ServedModel> models);

// -- Parts that whole responses and chunks have in common.

/// {"id", "object", "created", "model", "choices": without the value.
std::string response_start(const ResponseHead& head, std::string_view object);
/// {"prompt_tokens", "completion_tokens", "total_tokens", "prompt_tokens_details"}
void append_usage(std::string& to, const Usage& usage);
/// The members "reasoning_content" and "reasoning": clients know the one name or the other.
void append_reasoning(std::string& to, std::string_view reasoning);
/// The text or the number, or null.
void append_stop_reason(std::string& to, const std::optional<StopReason>& reason);

}  // namespace nanovllm::server
