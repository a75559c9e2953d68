#pragma once

#include "nanovllm/base/json.h"

namespace nanovllm::server {

/// Removes lines from the system messages at the start of a conversation that clients write there
/// for the operator of a service, not for the model. Such lines differ between sessions, and with
/// them no prompt would begin like that of another session in the prefix cache.
void drop_client_lines(Json& messages);

}  // namespace nanovllm::server
