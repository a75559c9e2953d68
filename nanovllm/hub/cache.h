#pragma once

#include <cstdint>
#include <ctime>
#include <optional>
#include <string>
#include <vector>

#include "nanovllm/base/system/file_descriptor.h"
#include "nanovllm/hub/model_id.h"
#include "nanovllm/hub/remote_model.h"

namespace nanovllm::hub {

/// The copy of one model in the cache, in the layout of the package huggingface_hub:
///   models--ORG--NAME/blobs/DIGITS              a file, named by its checksum
///   models--ORG--NAME/blobs/DIGITS.incomplete   a download that can be resumed
///   models--ORG--NAME/snapshots/COMMIT/FILE     a relative symbolic link to a blob
///   models--ORG--NAME/refs/REVISION             the commit of a branch or tag
///   .locks/models--ORG--NAME/DIGITS.lock        locked (flock) by the process that downloads it
class CachedModel {
 public:
  CachedModel(const std::string& cache_folder, const std::string& id);

  std::string blob(const RemoteFile& file) const { return folder_ + "/blobs/" + file.digits; }
  std::string snapshot(const std::string& commit) const { return folder_ + "/snapshots/" + commit; }
  /// The commit that the cache has for a branch, a tag, or a commit itself. A ref that cannot be
  /// read counts as missing.
  std::optional<std::string> commit_of(const std::string& revision) const;
  /// Whether the cache has a snapshot of any revision, which need not be complete.
  bool has_snapshots() const;
  /// Whether the file's blob exists with its whole size. The checksum was right when it was made.
  bool has_blob(const RemoteFile& file) const;
  /// The path of the file with its whole size: its blob or, on a disk without links, the file in
  /// the snapshot. Nothing if it does not exist.
  std::optional<std::string> path_of(const std::string& commit, const RemoteFile& file) const;
  /// How many bytes of the file need not be downloaded any more.
  uint64_t bytes_there(const RemoteFile& file) const;

  /// Makes the folders for blobs and locks. Throws std::runtime_error that names the folder.
  void create_folders() const;
  /// Opens the file to lock while a blob is downloaded.
  FileDescriptor open_lock(const RemoteFile& file) const;
  /// Adds the file, which is complete, to the snapshot.
  void link(const std::string& commit, const RemoteFile& file) const;
  void set_ref(const std::string& revision, const std::string& commit) const;
  /// Removes the remains of interrupted downloads of files whose blobs are complete now. Other
  /// programs may give each download a name of its own, DIGITS.RANDOM.incomplete.
  void remove_leftovers(const std::vector<RemoteFile>& files) const;

 private:
  std::string folder_, locks_;
};

/// Throws std::runtime_error for errno after an attempt to write to a file of a cache. Writes do
/// not follow symbolic links to files, because in a cache that several users share, a link could
/// lead to any file of the user who downloads.
[[noreturn]] void fail_to_write(const std::string& path);

/// The files that a snapshot needs and lacks, or whose blob does not exist; empty if it can be
/// used.
std::vector<std::string> missing_files(const std::string& snapshot, bool needs_weights);
/// Whether nothing but a tokenizer is `missing`, and on purpose, since the snapshot has no link to
/// one either. If another program made the snapshot, the tokenizer may exist, so the caller asks
/// the hub first.
bool lacks_only_tokenizer(const std::string& snapshot, const std::vector<std::string>& missing);

/// A model in the cache, for a list.
struct CacheEntry {
  std::string id;
  uint64_t bytes = 0;         ///< on the disk, unfinished downloads too
  std::time_t last_used = 0;  ///< when one of its files was last read
  bool is_complete = false;   ///< there is a snapshot that can be used
};

/// The models in the cache, sorted by id.
std::vector<CacheEntry> list_models(const std::string& cache_folder);
/// The ids of the models in the cache. This is faster than list_models().
std::vector<std::string> list_ids(const std::string& cache_folder);

/// Removes all revisions of a model. Throws UserError if the cache does not have it, with the
/// nearest id, if `id` names one revision, or if a process is downloading it.
void remove_model(const std::string& cache_folder, const std::string& id);

/// Notes that the snapshot is used now, for the list: reading need not change the time of a file.
void mark_used(const std::string& snapshot);

}  // namespace nanovllm::hub
