#pragma once

#include <string>
#include <vector>

#include "nanovllm/base/json.h"

namespace nanovllm {

// These functions read the JSON of an option's value. They throw UserError that names the option.

/// Reads a JSON object.
Json object_of(const std::string& text, const std::string& option);

/// The texts of a list option of vLLM: each value is a JSON array of texts, or a single text.
std::vector<std::string> texts_of(const std::string& option, const std::vector<std::string>& given);

}  // namespace nanovllm
