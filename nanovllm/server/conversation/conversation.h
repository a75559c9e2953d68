#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "nanovllm/server/conversation/answer_parser.h"
#include "nanovllm/server/generation.h"
#include "nanovllm/server/openai/request.h"

namespace nanovllm::server {

/// A conversation as the model reads it, and how its answer is to be read.
struct Conversation {
  std::vector<int32_t> prompt;  ///< of add_conversation(): empty unless the client asks for its ids
  int64_t num_prompt_tokens = 0;
  AnswerParser::Options parsing;
  std::vector<int32_t> shown_tokens;  ///< ids for Request::show_special_tokens()
};

/// RequestFactory::prepare(). An error about the form of the answer is about the field that the
/// client has used for it, unless `explain` throws another one.
std::shared_ptr<const RequestParams> prepare(
    const Serving& serving, const OpenAiRequest& request,
    const std::function<void(const std::string& message)>& explain = nullptr);

/// Renders and tokenizes a conversation, and frees its variables, which may be large. Throws
/// ApiError or another UserError, and Cancelled after a request to stop.
Conversation read_conversation(const Serving& serving, ChatRequest& request,
                               const std::stop_token& stop);

/// Reads a conversation, and adds the request for the answer to `generation`, without a writer.
Conversation add_conversation(const Serving& serving, ChatRequest& request, Generation& generation,
                              const std::stop_token& stop);

}  // namespace nanovllm::server
