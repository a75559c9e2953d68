#pragma once

#include <string>

#include "nanovllm/base/config.h"
#include "nanovllm/base/json.h"

namespace nanovllm {

/// `params` with the fields of a JSON object (vLLM's names) over it, validated. Throws UserError,
/// beginning with `where`, for an unknown field, a wrong type or a value out of range.
SamplingParams sampling_params_from_json(const Json& json, SamplingParams params,
                                         const std::string& where);

/// The sampling values of FOLDER/generation_config.json under the names of SamplingParams
/// (max_new_tokens as max_tokens), empty where there is no such file. Throws UserError.
Json sampling_defaults(const std::string& folder);

/// A JSON list of token ids. Throws UserError, beginning with `where`.
std::vector<int32_t> token_ids_from_json(const Json& json, const std::string& where);

}  // namespace nanovllm
