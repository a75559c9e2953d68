#pragma once

#include <optional>
#include <string>

#include "nanovllm/base/config.h"
#include "nanovllm/base/json_fields.h"
#include "nanovllm/model/model_spec.h"

namespace nanovllm {

/// Reads the config.json and generation_config.json of a checkpoint folder; rope_scaling and
/// hf_overrides of `options` replace what config.json says. Absent keys have the defaults of
/// transformers. Throws UserError that names the file and the key if a value is wrong or not
/// supported. If the folder is missing and can be the id of a model, the error says how to download
/// it.
ModelSpec load_model_spec(const std::string& folder, const EngineConfig& options = {});

/// Reads files that are parsed already; `generation_config` may be null. Each error begins with
/// `where`. `quantization` counts if config.json has no quantization_config.
ModelSpec parse_model_spec(const Json& config, const Json& generation_config,
                           const std::string& where, const EngineConfig& options = {},
                           const std::optional<JsonFields>& quantization = {});

}  // namespace nanovllm
