#pragma once

#include <functional>
#include <string>

namespace nanovllm::hub {

/// Options of find_model().
struct FindOptions {
  bool local_files_only = false;  ///< download nothing
  bool needs_weights = true;      ///< false: only configuration, tokenizer and chat template
  std::string revision = {};      ///< the REVISION of ORG/NAME@REVISION, given apart from the id
  std::string download_dir = {};  ///< the cache; empty: that of the environment
  /// Called ten times a second during a download. An exception of it ends the download.
  std::function<void()> check_interrupt = [] {};
};

/// The folder of a model. `model` is a path, or the id of a model on the Hugging Face hub,
/// ORG/NAME[@REVISION]. An id is looked for in this order:
///   1. a file or folder of this name;
///   2. a complete snapshot in the Hugging Face cache;
///   3. the hub, from which files that the cache lacks are downloaded.
/// A text that can be neither path nor id is returned unchanged; loading it fails with the message
/// that there is no such folder.
/// Throws UserError if there is no such model, or if it may not be downloaded, and
/// std::runtime_error if a download fails.
std::string find_model(const std::string& model, const FindOptions& options = {});

/// Downloads the files of the newest commit of a model that the cache lacks, and returns the folder
/// of its snapshot. With `verify` the checksums of files in the cache are checked too, and damaged
/// files are downloaded again.
std::string pull_model(const std::string& id, bool verify);

/// The name of a model for messages: its id if `folder` is a snapshot in a Hugging Face cache, else
/// `folder`.
std::string shown_name(const std::string& folder);

/// A hint for the end of a message about a file that `folder` does not have: how to download it, if
/// `folder` is a snapshot in a Hugging Face cache, which another program may have filled in part.
/// In other folders it is empty.
std::string pull_hint(const std::string& folder);

}  // namespace nanovllm::hub
