#pragma once

#include <nanobind/nanobind.h>
#include <nanovllm/llm.h>

#include <string>
#include <variant>
#include <vector>

namespace nanovllm::python {

using Prompt = std::variant<std::string, std::vector<int32_t>>;

/// Each throws TypeError that says what is wrong if an object has a wrong type, and
/// UnicodeEncodeError (a ValueError) if a text cannot be encoded as UTF-8.
std::string to_text(nanobind::handle text, const char* what);
std::vector<int32_t> to_token_ids(nanobind::handle ids, const char* what);
Prompt to_prompt(nanobind::handle prompt);
/// Converts an object with the attributes of SamplingParams. None means a field's default; for
/// max_tokens it means no limit.
SamplingParams to_sampling_params(nanobind::handle object);
/// Converts a dictionary with the names of the fields.
EngineConfig to_engine_config(const nanobind::dict& options);
/// The values of all fields after the conversion, by name. Tests compare them.
nanobind::dict sampling_fields(nanobind::handle object);
nanobind::dict engine_fields(const nanobind::dict& options);

/// A finished request as generate() returns it.
nanobind::dict from_output(const RequestOutput& output);
/// A piece of an answer: text, token_ids, output (None until the answer has ended).
nanobind::dict from_update(const RequestUpdate& update);

}  // namespace nanovllm::python
