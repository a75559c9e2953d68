#pragma once

#include <functional>
#include <string>

namespace nanovllm::hub {

/// How find_model() may find a model.
struct FindOptions {
  bool local_files_only = false;  ///< download nothing
  bool needs_weights = true;      ///< false: only configuration, tokenizer and chat template
  std::string revision = {};      ///< the same as @REVISION in an id
  std::string download_dir = {};  ///< the cache; empty: as the environment says
  /// Called ten times a second during a download; what it throws ends the download.
  std::function<void()> check_interrupt = [] {};
};

/// The folder of a model. `model` is a path, or the id of a model on the Hugging Face hub,
/// ORG/NAME[@REVISION]. An id is looked for in this order:
///   1. a file or folder of this name;
///   2. a complete snapshot in the Hugging Face cache;
///   3. the hub: what the cache lacks is downloaded.
/// Whatever can be neither is returned unchanged; loading it says that there is no such folder.
/// Throws UserError if there is no such model, or if it may not be downloaded, and
/// std::runtime_error if a download fails.
std::string find_model(const std::string& model, const FindOptions& options = {});

/// Downloads what the cache lacks of the newest commit of a model, and returns the folder of its
/// snapshot. `verify`: the checksums of the files that are there are checked, too, and those that
/// are damaged are downloaded again.
std::string pull_model(const std::string& id, bool verify);

/// How to call a model in messages: the id if `folder` is a snapshot in a Hugging Face cache, and
/// else `folder`.
std::string shown_name(const std::string& folder);

/// For the end of a message about a file that `folder` does not have: how to download it if this is
/// a snapshot in a Hugging Face cache, which another program may have filled in part; else nothing.
std::string pull_hint(const std::string& folder);

}  // namespace nanovllm::hub
