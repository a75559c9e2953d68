#pragma once

#include <string>

#include "nanovllm/hub/cache.h"
#include "nanovllm/hub/download/backoff.h"
#include "nanovllm/hub/download/download_bars.h"
#include "nanovllm/hub/download/http.h"
#include "nanovllm/hub/model_id.h"

namespace nanovllm::hub {

/// The settings and state that the downloads of a model's files share.
struct DownloadJob {
  const ModelId& id;
  const Settings& settings;
  const std::string& token;
  const std::string& commit;
  const CachedModel& cached;
  const std::atomic<bool>& stop;
};

/// Downloads a file to its blob, or the rest of it if an earlier download was interrupted. Waits if
/// another process is already downloading it. The blob exists only once its size and its checksum
/// are right. Throws UserError if the hub refuses the file, std::runtime_error for any other
/// failure, and Stopped.
void download_blob(const DownloadJob& job, const RemoteFile& file, FileProgress& progress,
                   DownloadBars& bars);

}  // namespace nanovllm::hub
