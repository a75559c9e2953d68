#pragma once

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

/// The sampling parameters in FOLDER/generation_config.json as a JSON object with the names of
/// SamplingParams (max_new_tokens becomes max_tokens). Empty if there is no such file. Throws
/// UserError if the file is not valid.
Json sampling_defaults(const std::string& folder);

/// The same as SamplingParams: the default of a conversation. If the file does not limit the length
/// of an answer, max_tokens is kNoMaxTokens.
SamplingParams checkpoint_sampling_params(const std::string& folder);

/// Reads a JSON list of token ids. Throws UserError that begins with `where`.
std::vector<int32_t> token_ids_from_json(const Json& json, const std::string& where);

}  // namespace nanovllm
