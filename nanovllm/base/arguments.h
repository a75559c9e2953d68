#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "nanovllm/base/config.h"

namespace nanovllm {

/// The command-line options that set `values` (an EngineConfig or SamplingParams): one for each
/// field that has an option and whose value is not the default.
template <class Struct>
std::vector<std::string> to_arguments(const Struct& values);

/// A message for callers of the library, with the names of fields instead of options:
/// "max_model_len" for "--max-model-len". An option that turns a field off, "--no-...", becomes the
/// field's name and `off`.
std::string with_field_names(std::string message, std::string_view off = "=false");

}  // namespace nanovllm
