#pragma once

#include <string>

#include "nanovllm/base/config.h"
#include "nanovllm/base/field.h"

namespace nanovllm {

/// Whether the parameter has a meaning in a conversation, in which each message has one answer,
/// shown as text.
bool is_for_chat(const FieldInfo& field);

/// A line with its name, value and description for each parameter, or for the one with this name.
/// Throws UserError if there is no such parameter.
std::string describe(const SamplingParams& params, const std::string& name);

/// The parameters with one changed. `value` is JSON; a text needs no quotation marks. Throws
/// UserError.
SamplingParams changed(const SamplingParams& params, const std::string& name,
                       const std::string& value);

}  // namespace nanovllm
