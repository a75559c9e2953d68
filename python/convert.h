#pragma once

#include <nanobind/nanobind.h>
#include <nanovllm/llm.h>

#include <string>
#include <variant>
#include <vector>

namespace nanovllm::python {

using Prompt = std::variant<std::string, std::vector<int32_t>>;

/// Each throws TypeError with what is wrong where an object is of another kind, UnicodeEncodeError
/// (a ValueError) for a text that UTF-8 cannot hold.
std::string to_text(nanobind::handle text, const char* what);
std::vector<int32_t> to_token_ids(nanobind::handle ids, const char* what);
Prompt to_prompt(nanobind::handle prompt);
/// From an object with the attributes of SamplingParams; None is a field's default, and for
/// max_tokens no limit of its own.
SamplingParams to_sampling_params(nanobind::handle object);
/// From a dictionary with the fields' names.
EngineConfig to_engine_config(const nanobind::dict& options);
/// What the engine reads of these: all its fields, by name.
nanobind::dict sampling_fields(nanobind::handle object);
nanobind::dict engine_fields(const nanobind::dict& options);

/// A finished request as generate() returns it.
nanobind::dict from_output(const RequestOutput& output);
/// A piece of an answer: text, token_ids, output (None until the answer ended).
nanobind::dict from_update(const RequestUpdate& update);

}  // namespace nanovllm::python
