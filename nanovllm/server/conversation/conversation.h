#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "nanovllm/base/json.h"
#include "nanovllm/base/output.h"
#include "nanovllm/server/conversation/answer_parser.h"
#include "nanovllm/server/generation.h"

namespace nanovllm::server {

/// What all APIs need of a conversation that a client has sent.
struct ConversationRequest {
  Json variables;                       ///< of ChatTemplate::prompt()
  std::vector<std::string> tool_names;  ///< that may be called
  bool parallel_tool_calls = true;      ///< false: only the first call is part of the response
};

/// A conversation as the model reads it, and how its answer is to be read.
struct Conversation {
  std::vector<int32_t> prompt;
  AnswerParser::Options parsing;
};

/// Renders and tokenizes a conversation. Throws ApiError or another UserError.
Conversation read_conversation(const Serving& serving, const ConversationRequest& request,
                               bool add_special_tokens);

}  // namespace nanovllm::server
