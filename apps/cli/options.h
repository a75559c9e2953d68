#pragma once

#include "apps/cli/command.h"

namespace nanovllm {

struct EngineConfig;
struct GenerationConfig;
struct SamplingParams;

/// Adds an option for each field of `config` that has one in config.h; add_sampling_options() does
/// so for `params`.
void add_engine_options(Command command, EngineConfig& config);
void add_sampling_options(Command command, SamplingParams& params);
/// Adds the two options that `config` has.
void add_generation_config(Command command, GenerationConfig& config);

}  // namespace nanovllm
