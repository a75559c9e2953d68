#pragma once

#include <string>

#include "nanovllm/server/generation.h"

namespace nanovllm::server {

/// POST /v1/messages, for generate(). Throws ApiError or another UserError.
Generation read_message(const Serving& serving, const std::string& body,
                        const std::stop_token& stop);

/// The response to POST /v1/messages/count_tokens. Throws ApiError or another UserError.
std::string count_tokens_response(const Serving& serving, const std::string& body,
                                  const std::stop_token& stop);

}  // namespace nanovllm::server
