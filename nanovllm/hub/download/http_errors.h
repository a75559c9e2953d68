#pragma once

#include <string>

#include "nanovllm/hub/download/http.h"
#include "nanovllm/hub/model_id.h"

namespace nanovllm::hub {

/// Whether the request may succeed later, because the server has too much work or has failed.
bool is_temporary(const HttpReply& reply);

/// A description of the server's answer, for a message about a temporary failure.
std::string describe_temporary(const HttpReply& reply, const Settings& settings);

/// Throws UserError that says why the hub refuses the model, or the file of it that is named, and
/// what to do: the licence of a gated model, the token, or the nearest id in the cache.
[[noreturn]] void fail_for(const HttpReply& reply, const ModelId& id, const Settings& settings,
                           bool has_token, const std::string& file = "");

/// Throws UserError for a model that could only be on a hub that cannot be reached. (Without a
/// network, a wrong path looks like such a model.)
[[noreturn]] void fail_unreachable(const NetworkError& error, const ModelId& id,
                                   const Settings& settings);

}  // namespace nanovllm::hub
