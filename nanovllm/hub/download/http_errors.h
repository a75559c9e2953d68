#pragma once

#include <string>

#include "nanovllm/hub/download/http.h"
#include "nanovllm/hub/model_id.h"

namespace nanovllm::hub {

/// Whether the same request may succeed later: the server has too much work, or has failed.
bool is_temporary(const HttpReply& reply);

/// What the server has answered, for a message about a temporary failure.
std::string describe_temporary(const HttpReply& reply, const Settings& settings);

/// Throws UserError that says why the hub refuses the model, or the file of it that is named, and
/// what to do: the licence of a gated model, the token, or the nearest id in the cache.
[[noreturn]] void fail_for(const HttpReply& reply, const ModelId& id, const Settings& settings,
                           bool has_token, const std::string& file = "");

/// Throws UserError for a model that is only on a hub that cannot be reached. (Without a network, a
/// wrong path looks the same.)
[[noreturn]] void fail_unreachable(const NetworkError& error, const ModelId& id,
                                   const Settings& settings);

}  // namespace nanovllm::hub
