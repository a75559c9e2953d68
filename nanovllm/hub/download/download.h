#pragma once

#include <functional>
#include <string>

#include "nanovllm/hub/model_id.h"
#include "nanovllm/hub/settings.h"

namespace nanovllm::hub {

/// Downloads what the cache lacks of a model, and returns the folder of its snapshot. Before each
/// part, a line on stderr says from where and how large it is. `check_interrupt` is called ten
/// times a second and may throw, which ends the download; what it has is kept. Throws UserError if
/// the hub refuses the model, and std::runtime_error if it cannot be downloaded for any other
/// reason.
std::string download_model(const ModelId& id, const Settings& settings, bool needs_weights,
                           const std::function<void()>& check_interrupt);

}  // namespace nanovllm::hub
