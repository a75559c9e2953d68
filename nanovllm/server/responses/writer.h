#pragma once

#include <string>

#include "nanovllm/server/generation.h"

namespace nanovllm::server {

/// POST /v1/responses, for generate(). Throws ApiError or another UserError.
Generation read_response(const Serving& serving, const std::string& body,
                         const std::stop_token& stop);

/// The text of POST /v1/responses/input_tokens: how many tokens the prompt has.
std::string count_input_response(const Serving& serving, const std::string& body,
                                 const std::stop_token& stop);

/// The text of GET /v1/responses/ID/input_items.
std::string input_items_response(const StoredResponse& response);

}  // namespace nanovllm::server
