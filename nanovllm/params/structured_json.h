#pragma once

#include <string>
#include <string_view>

#include "nanovllm/base/json.h"
#include "nanovllm/base/structured_outputs.h"

// The form of an answer as requests write it: vLLM's structured_outputs, and other fields that mean
// the same.
namespace nanovllm {

/// Reads an object with the names of StructuredOutputs. A schema and a structural tag are objects
/// or their texts. Throws UserError that goes on after the name of the field: "has a wrong regex:
/// ...".
StructuredOutputs structured_outputs_from_json(const Json& json);
/// The same object, without what is not set.
Json to_json(const StructuredOutputs& form);

/// Whether the name is one of the fields that take_form() reads: structured_outputs, OpenAI's
/// response_format and the older names guided_json, guided_regex and so on. In a body, and not in a
/// line of a batch file itself, also those of SGLang: json_schema, regex, ebnf, structural_tag.
bool is_form_field(std::string_view name, bool in_body);

/// Adds what such a field says to the member structured_outputs of `sampling`. Throws UserError
/// that begins with the name for a wrong value, and if it gives a second form. Returns false if the
/// field is another one.
bool take_form(const std::string& name, const Json& value, bool in_body, Json& sampling);

}  // namespace nanovllm
