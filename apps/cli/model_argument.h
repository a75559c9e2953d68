#pragma once

#include <string>

#include "apps/cli/command.h"

namespace nanovllm {

/// Adds the argument MODEL: a folder, or the id of a model on the Hugging Face hub.
Option add_model_argument(Command command, std::string& model);

/// Replaces the id that a parsed command has as MODEL by the model's folder, which may be
/// downloaded (hub/hub.h). Commands then know only folders. A command without engine options needs
/// no weights. Returns the folder; empty for a command without MODEL.
std::string find_model_of(Command command);

}  // namespace nanovllm
