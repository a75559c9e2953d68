#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "nanovllm/base/config.h"
#include "nanovllm/base/json.h"

// The bodies of OpenAI's /v1/completions and /v1/chat/completions, with vLLM's additional fields.
// Fields that are unknown are ignored, as in vLLM. Fields that would change the answer in a way
// that this program cannot are refused by name (params/unsupported.h).
namespace nanovllm::server {

/// A prompt as a client gives it: a text or token ids.
using PromptInput = std::variant<std::string, std::vector<int32_t>>;

/// What requests to both endpoints can say.
struct OpenAiRequest {
  std::string model;  ///< empty: none was given. The caller knows which models there are
  SamplingParams params;
  bool stream = false;
  bool include_usage = false;     ///< a stream ends with a chunk that has the usage
  bool continuous_usage = false;  ///< and every other chunk has the usage so far
  bool return_token_ids = false;
  bool return_prompt_logprobs = false;  ///< asked for; params has them for `echo` as well
  bool add_special_tokens = false;      ///< Tokenizer::encode() of a prompt that is a text
  std::string form_field = "structured_outputs";  ///< the client's name for params.constraint
  std::string cache_salt;  ///< requests with different ones share no prefix; empty: none was given

  /// Whether a stream also has chunks that show only tokens.
  bool shows_tokens() const { return return_token_ids || params.logprobs.has_value(); }
};

struct CompletionRequest : OpenAiRequest {
  std::vector<PromptInput> prompts;  ///< 1 to kMaxPrompts; no list of ids is empty
  bool echo = false;                 ///< answers begin with their prompts
  /// max_tokens was 0, which is allowed with `echo`. The engine draws one token, which is not part
  /// of the response.
  bool prompt_only = false;
};

struct ChatRequest : OpenAiRequest {
  Json variables;                       ///< of ChatTemplate::prompt()
  std::vector<std::string> tool_names;  ///< that may be called; empty with tool_choice "none"
  bool must_call = false;               ///< the answer calls one of these, and has no text
  bool continues_answer = false;        ///< the answer continues the last message
  bool parallel_tool_calls = true;      ///< false: only the first call is part of the response
};

/// `defaults`: GenerationConfig::defaults(). They limit the length of a conversation's answer that
/// has no limit of its own; without one, a completion has at most 16 tokens, as in OpenAI's API.
/// Both throw ApiError (400), or another UserError.
CompletionRequest completion_request(const Json& body, const SamplingParams& defaults);
ChatRequest chat_request(Json body, const SamplingParams& defaults);

/// Frees the lists of parameters that RequestFactory::prepare() has read.
void free_lists(SamplingParams& params);

}  // namespace nanovllm::server
