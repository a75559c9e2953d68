#pragma once

#include <string>

#include "apps/cli/command.h"

namespace nanovllm {

/// Adds the options of params/unsupported.h that `command` does not have itself: those of the
/// engine if it has an engine, and those of vLLM's command of the same name. They are not in its
/// help.
void add_vllm_options(Command command);

/// A line for the log that names the given options of `command` that have no effect; empty if there
/// are none. The command line must be parsed.
std::string note_without_effect(Command command);

}  // namespace nanovllm
