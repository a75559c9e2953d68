#pragma once

#include <string>
#include <string_view>

#include "nanovllm/base/json.h"

namespace nanovllm {

// What the lines of batch files and the server know about the fields of OpenAI's and vLLM's API.
// Some fields change the answer in a way that this program cannot. Each of them has at most one
// value that asks for nothing, besides null.

/// Whether a field of this name is one of them in any place, also in a line of a batch file, where
/// other fields may be the user's own.
bool is_unsupported_field(std::string_view name);

/// Throws UserError "<name> <value> is not supported" if the field is one of these and asks for
/// something. Returns false if it is none of these. `in_body`: the field is in the body of a
/// request or in sampling_params, where also names such as "suffix" have the API's meaning.
bool refuse_unsupported(std::string_view name, const Json& value, bool in_body);

}  // namespace nanovllm
