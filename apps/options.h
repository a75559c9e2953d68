#pragma once

#include <CLI/CLI.hpp>
#include <string>

#include "nanovllm/base/config.h"

namespace nanovllm {

void add_model_argument(CLI::App& app, std::string& model);
/// The engine's options, with vLLM's names.
void add_engine_options(CLI::App& app, EngineConfig& config);
void add_sampling_options(CLI::App& app, SamplingParams& params);

}  // namespace nanovllm
