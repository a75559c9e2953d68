#pragma once

#include <string>
#include <vector>

#include "nanovllm/base/config.h"

namespace nanovllm {

/// The command line's options that give `values` (an EngineConfig or SamplingParams): of each field
/// that has an option and another value than by default.
template <class Struct>
std::vector<std::string> to_arguments(const Struct& values);

}  // namespace nanovllm
