#pragma once

#include <memory>
#include <string>

#include "nanovllm/base/config.h"
#include "nanovllm/base/json.h"
#include "nanovllm/server/openai/request.h"
#include "nanovllm/server/responses/store.h"

// The body of OpenAI's /v1/responses. Like a conversation of Anthropic's API, it is translated into
// the form of chat completions, which is what chat templates read; so all three have the same
// limits and checks.
namespace nanovllm::server {

struct ResponsesRequest {
  ChatRequest chat;
  // These are JSON texts, because they are kept until the answer ends, and a tree takes far more
  // memory.
  std::string input;           ///< the list of the request's own items; empty unless it is stored
  size_t num_input_items = 0;  ///< items in `input`
  std::string echo;            ///< an object: the fields of the request that the response repeats
  bool store = true;
  std::shared_ptr<const StoredResponse> previous;  ///< previous_response_id; null: none
};

/// Reads a body. Ignores fields that could not change the answer, and tools that are no functions,
/// which the log says once. Refuses by name fields that ask for something this program cannot do.
/// Throws ApiError (400; 404 for a previous response that does not exist) or another UserError.
ResponsesRequest responses_request(Json body, const SamplingParams& defaults, ResponseStore& store);

}  // namespace nanovllm::server
