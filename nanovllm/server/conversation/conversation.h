#pragma once

#include <cstdint>
#include <vector>

#include "nanovllm/server/conversation/answer_parser.h"
#include "nanovllm/server/generation.h"
#include "nanovllm/server/openai/request.h"

namespace nanovllm::server {

/// A conversation as the model reads it, and how its answer is to be read.
struct Conversation {
  std::vector<int32_t> prompt;
  AnswerParser::Options parsing;
};

/// Renders and tokenizes a conversation. Throws ApiError or another UserError.
Conversation read_conversation(const Serving& serving, const ChatRequest& request);

}  // namespace nanovllm::server
