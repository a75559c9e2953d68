#pragma once

#include "nanovllm/base/json.h"

namespace nanovllm::server {

/// Removes lines that clients write into the system messages at the start of a conversation for the
/// operator of a service, not for the model. These lines differ between sessions, so with them no
/// session could share another one's system prompt in the prefix cache.
void drop_client_lines(Json& messages);

}  // namespace nanovllm::server
