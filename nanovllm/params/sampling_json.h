#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "nanovllm/base/config.h"
#include "nanovllm/base/json.h"

namespace nanovllm {

/// Whether SamplingParams has a field of this name.
bool is_sampling_field(std::string_view name);

/// Returns `params` with the fields of a JSON object (under vLLM's names) replaced, and validates
/// it. Throws UserError that begins with `where` for an unknown field, a wrong type or a value out
/// of range.
SamplingParams sampling_params_from_json(const Json& json, SamplingParams params,
                                         const std::string& where);

/// Reads a JSON list of token ids. Throws UserError that begins with `where`.
std::vector<int32_t> token_ids_from_json(const Json& json, const std::string& where);

}  // namespace nanovllm
