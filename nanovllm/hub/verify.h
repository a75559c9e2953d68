#pragma once

#include <atomic>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "nanovllm/hub/cache.h"
#include "nanovllm/hub/model_id.h"
#include "nanovllm/hub/remote_model.h"
#include "nanovllm/hub/settings.h"

namespace nanovllm::hub {

/// A file in the cache, and the checksum that its contents must have.
struct FileCheck {
  std::string path;
  RemoteFile expected;
};

/// Reads the files, several at the same time, with progress bars, and returns those whose contents
/// do not have their checksum or cannot be read. `check_interrupt` is called ten times a second.
std::vector<FileCheck> damaged_files(const std::vector<FileCheck>& files, std::atomic<bool>& stop,
                                     const std::function<void()>& check_interrupt);

/// Checks the copy of a model without the hub, since a blob is named by its checksum. Returns the
/// folder of the snapshot; nothing if there is no copy. `why` is the reason why the hub is not
/// asked. Throws UserError that names the files that are damaged or missing.
std::optional<std::string> verify_without_hub(const ModelId& id, const Settings& settings,
                                              const std::string& why,
                                              const std::function<void()>& check_interrupt);

/// A hint for the end of a message about files of `folder`: the command that finds and repairs
/// damaged files, if `folder` is a snapshot in a Hugging Face cache and `error` names it or a file
/// in it. Empty if that file has the right checksum, because then a download would not change it.
std::string verify_hint(const std::string& folder, std::string_view error);

}  // namespace nanovllm::hub
