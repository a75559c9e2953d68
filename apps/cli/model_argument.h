#pragma once

#include <CLI/CLI.hpp>
#include <string>

namespace nanovllm {

/// Adds the argument MODEL: a folder, or the id of a model on the Hugging Face hub.
CLI::Option* add_model_argument(CLI::App& app, std::string& model);

/// Replaces the id that a parsed command has as MODEL by the model's folder, which may be
/// downloaded (hub/hub.h). Commands then know only folders. A command without engine options needs
/// no weights.
void find_model_of(CLI::App& app);

}  // namespace nanovllm
