#pragma once

#include <nanobind/nanobind.h>
#include <nanovllm/llm.h>
#include <nanovllm/text/tokenizer/tokenizer.h>

#include <string>
#include <variant>
#include <vector>

namespace nanovllm::python {

using Prompt = std::variant<std::string, std::vector<int32_t>>;

/// Converts a text. Like the other conversions, it throws TypeError that says what is wrong if an
/// object has a wrong type, and UserError if a text cannot be encoded as UTF-8 or a whole number is
/// too large.
std::string to_text(nanobind::handle text, const char* what);
std::vector<int32_t> to_token_ids(nanobind::handle ids, const char* what);
Prompt to_prompt(nanobind::handle prompt);
/// Converts an object with the attributes of SamplingParams. None means a field's default; for
/// max_tokens it means no limit.
SamplingParams to_sampling_params(nanobind::handle object);
/// Converts a dictionary with the names of the fields.
EngineConfig to_engine_config(const nanobind::dict& options);
/// The values of all fields by name, as the constructors of Python take them.
nanobind::dict to_dict(const SamplingParams& params);
nanobind::dict to_dict(const EngineConfig& config);
/// The name of the value and the help text of each field by name: help() shows them. A bool's text
/// says which value it means.
template <class Struct>
nanobind::dict help_of_fields();
/// A message with the fields' names in Python in place of the options of the command line:
/// "max_model_len" for "--max-model-len".
std::string with_python_names(std::string message);

/// A finished request as two dictionaries: the keys of nanovllm.RequestOutput, and the values that
/// it has only as attributes. `tokenizer` (it may be null) gives the text of each token in the
/// log-probabilities.
nanobind::tuple from_output(const RequestOutput& output, const Tokenizer* tokenizer);
/// A piece of an answer, nanovllm.StreamPiece without its index, in which output is the result of
/// from_output(); and the text of each token in its log-probabilities.
nanobind::tuple from_update(const RequestUpdate& update, const Tokenizer* tokenizer);
nanobind::dict from_stats(const EngineStats& stats);

}  // namespace nanovllm::python
