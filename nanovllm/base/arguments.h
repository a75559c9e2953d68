#pragma once

#include <string>
#include <vector>

#include "nanovllm/base/config.h"

namespace nanovllm {

/// The command-line options that set `values` (an EngineConfig or SamplingParams): one for each
/// field that has an option and whose value is not the default.
template <class Struct>
std::vector<std::string> to_arguments(const Struct& values);

}  // namespace nanovllm
