#pragma once

#include "nanovllm/base/config.h"
#include "nanovllm/base/json.h"
#include "nanovllm/server/openai/request.h"

// The bodies of Anthropic's /v1/messages and /v1/messages/count_tokens. A conversation in this form
// is translated into OpenAI's, which is what chat templates read. So both APIs have the same limits
// and checks, and vLLM's sampling fields work here too.
namespace nanovllm::server {

enum class MessagesRoute { kMessages, kCountTokens };

/// Reads a body. Ignores fields that are unknown or could not change the answer, such as an effort.
/// Refuses by name fields that ask for something this program cannot do, such as Anthropic's own
/// tools. Throws ApiError (400) or another UserError.
ChatRequest messages_request(const Json& body, const SamplingParams& defaults, MessagesRoute route);

}  // namespace nanovllm::server
