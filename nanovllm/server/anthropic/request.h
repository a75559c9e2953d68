#pragma once

#include "nanovllm/base/config.h"
#include "nanovllm/base/json.h"
#include "nanovllm/server/openai/request.h"

// The bodies of Anthropic's /v1/messages and /v1/messages/count_tokens. A conversation in this form
// is translated into OpenAI's, which is what chat templates read. So both APIs have the same limits
// and checks, and vLLM's sampling fields work here too.
namespace nanovllm::server {

enum class MessagesRoute { kMessages, kCountTokens };

/// Fields that are unknown are ignored, and so are those that could not change the answer, such as
/// an effort. What would change it in a way that this program cannot is refused by name:
/// Anthropic's own tools, a forced tool, output in a given form. Throws ApiError (400) or another
/// UserError.
ChatRequest messages_request(const Json& body, const SamplingParams& defaults, MessagesRoute route);

}  // namespace nanovllm::server
