#pragma once

#include <string>

#include "nanovllm/server/generation.h"

namespace nanovllm::server {

/// POST /v1/completions and /v1/chat/completions, for generate(). Both throw ApiError or another
/// UserError.
Generation read_completion(const Serving& serving, const std::string& body,
                           const std::stop_token& stop);
Generation read_chat(const Serving& serving, const std::string& body, const std::stop_token& stop);

}  // namespace nanovllm::server
