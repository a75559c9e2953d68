#pragma once

#include <optional>
#include <string>
#include <vector>

#include "nanovllm/server/engine_client.h"
#include "nanovllm/server/http/http.h"
#include "nanovllm/text/chat_template.h"

namespace nanovllm::server {

/// What the answers to all requests need. Used by the I/O thread, and by the pool only to read.
struct Serving {
  asio::io_context& io;
  asio::thread_pool& pool;  ///< for JSON, templates and tokenizing
  EngineClient client;
  std::optional<ChatTemplate> chat_template;
  SamplingParams defaults;
  std::vector<std::string> names;  ///< of the model; a request without a name means the first one
  int64_t most_sequences = 0;      ///< that may run or wait; further requests get status 429
  int64_t num_sequences = 0;
};

/// POST /v1/completions and /v1/chat/completions. Both throw ApiError or another UserError before
/// anything was sent, and EngineDead at any time. If the client goes, its requests end.
Task<> answer_completion(Serving& serving, const HttpRequest& request, HttpReply& reply);
Task<> answer_chat(Serving& serving, const HttpRequest& request, HttpReply& reply);

}  // namespace nanovllm::server
