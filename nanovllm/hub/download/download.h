#pragma once

#include <functional>
#include <string>

#include "nanovllm/hub/model_id.h"
#include "nanovllm/hub/settings.h"

namespace nanovllm::hub {

struct DownloadOptions {
  bool needs_weights = true;
  /// Check the contents of the files that are there, and download those that are damaged again.
  bool verify = false;
  /// Called ten times a second; what it throws ends the download. What it has is kept.
  std::function<void()> check_interrupt = [] {};
};

/// Downloads what the cache lacks of a model, and returns the folder of its snapshot. Before each
/// part, a line on stderr says from where and how large it is. Throws UserError if the hub refuses
/// the model, and std::runtime_error if it cannot be downloaded for any other reason. If the hub
/// cannot be asked, `verify` checks the copy in the cache as verify_without_hub() does.
std::string download_model(const ModelId& id, const Settings& settings,
                           const DownloadOptions& options);

}  // namespace nanovllm::hub
