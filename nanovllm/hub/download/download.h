#pragma once

#include <functional>
#include <string>

#include "nanovllm/hub/model_id.h"
#include "nanovllm/hub/settings.h"

namespace nanovllm::hub {

struct DownloadOptions {
  bool needs_weights = true;
  /// Check the contents of the files that the cache has, and download damaged ones again.
  bool verify = false;
  /// Called ten times a second. An exception of it ends the download, whose bytes so far are kept.
  std::function<void()> check_interrupt = [] {};
};

/// Downloads the files of a model that the cache lacks, and returns the folder of its snapshot.
/// Before each part, a line on stderr says from where it comes and how large it is. Throws
/// UserError if the hub refuses the model, and std::runtime_error if it cannot be downloaded for
/// any other reason. If the hub cannot be reached, `verify` checks the copy in the cache as
/// verify_without_hub() does.
std::string download_model(const ModelId& id, const Settings& settings,
                           const DownloadOptions& options);

}  // namespace nanovllm::hub
