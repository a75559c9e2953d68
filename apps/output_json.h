#pragma once

#include "nanovllm/base/json.h"
#include "nanovllm/base/output.h"

namespace nanovllm {

/// The JSON object that `generate --json` prints for a prompt.
Json to_json(const RequestOutput& output, int64_t index);

}  // namespace nanovllm
