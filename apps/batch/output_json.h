#pragma once

#include <string>

#include "nanovllm/base/json.h"
#include "nanovllm/base/output.h"

namespace nanovllm {

/// The JSON object that `generate --json` prints for a prompt. `passed` are the fields of the
/// prompt's line that the result has too; a field of the result itself has precedence.
Json to_json(const RequestOutput& output, int64_t index, const Json& passed);
/// The JSON object that `generate --json` prints for a line that is not a prompt.
Json to_json(const std::string& error, int64_t index, const Json& passed);

/// Whether an object is a result at all, and how its prompt ended. A prompt was refused if there is
/// an error and no token.
enum class Outcome : uint8_t { kAnswered, kRefused, kFailed };
Outcome outcome_of(const RequestOutput& output);
/// How the prompt of a result that was read from a file ended. Throws an exception if the object is
/// no result.
Outcome outcome_of(const Json& result);

}  // namespace nanovllm
