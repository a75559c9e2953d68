#pragma once

#include <stop_token>
#include <string>

#include "nanovllm/server/generation.h"

// The texts of vLLM's routes for the tokenizer.
namespace nanovllm::server {

/// POST /tokenize: {"prompt"} or {"messages", ...}. Throws ApiError or another UserError, as the
/// next one does.
std::string tokenize_response(const Serving& serving, const std::string& body,
                              const std::stop_token& stop);
/// POST /detokenize: {"tokens": [...]}.
std::string detokenize_response(const Serving& serving, const std::string& body,
                                const std::stop_token& stop);
/// GET /tokenizer_info: the settings of the tokenizer, and the chat template in use. `folder` is
/// the model's; `template_file` may be empty.
std::string describe_tokenizer(const std::string& folder, const std::string& template_file);

}  // namespace nanovllm::server
