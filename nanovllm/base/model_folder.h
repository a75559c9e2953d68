#pragma once

#include <string>

namespace nanovllm {

/// Throws UserError where `folder` is no folder; for one that is missing, and for the id of a model
/// on the hub, it says how to download one.
void require_model_folder(const std::string& folder);

}  // namespace nanovllm
