#include "nanovllm/hub/cache.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <random>
#include <stdexcept>

#include "nanovllm/base/check.h"
#include "nanovllm/base/strings/suggestion.h"
#include "nanovllm/base/system/files.h"

namespace nanovllm::hub {

namespace {

namespace fs = std::filesystem;

constexpr size_t kMaxRefBytes = 100;

void create_folder(const fs::path& folder) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (error)
    throw std::runtime_error(fmt::format("{}: {}; set HF_HOME to a folder for downloaded models",
                                         folder.string(), error.message()));
}

bool is_link(const fs::path& path) {
  std::error_code ignored;  // a path that cannot be read counts as no link
  return fs::is_symlink(path, ignored);
}

/// Creates a folder below the folder `model` of a model, for snapshots or refs. No part of the path
/// may be a link: the files have known names, such as config.json, so they could replace files in
/// any other folder.
void create_own_folder(const fs::path& model, const fs::path& folder) {
  for (fs::path part = folder; part != model && part.has_relative_path(); part = part.parent_path())
    if (is_link(part))
      throw std::runtime_error(fmt::format(
          "{}: it is a symbolic link, and a folder is needed here; remove it", part.string()));
  create_folder(folder);
}

/// The size of a regular file; nothing if there is none.
std::optional<uint64_t> size_of(const std::string& path) {
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0 || !S_ISREG(status.st_mode)) return std::nullopt;
  return static_cast<uint64_t>(status.st_size);
}

FileDescriptor open_lock_file(const std::string& path) {
  return FileDescriptor(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666));
}

template <class Visit>
void for_each_in(const fs::path& folder, Visit&& visit) {
  std::error_code ignored;  // a folder that is missing has no entries
  for (fs::directory_iterator at(folder, ignored), end; at != end; at.increment(ignored))
    visit(*at);
}

/// Adds the file to the entry, unless it is a link: a snapshot has links to blobs, which are
/// counted, or the files themselves if the disk has no links.
void count_file(const fs::path& path, CacheEntry& entry) {
  struct stat status {};
  if (::lstat(path.c_str(), &status) != 0 || !S_ISREG(status.st_mode)) return;
  entry.bytes += static_cast<uint64_t>(status.st_size);
  entry.last_used = std::max(entry.last_used, status.st_atime);
}

}  // namespace

void fail_to_write(const std::string& path) {
  const int why = errno;
  throw std::runtime_error(
      fmt::format("{}: {}", path,
                  why == ELOOP ? "it is a symbolic link, which is not followed; remove it"
                               : std::strerror(why)));
}

CachedModel::CachedModel(const std::string& cache_folder, const std::string& id)
    : folder_(cache_folder + "/" + folder_name(id)),
      locks_(cache_folder + "/.locks/" + folder_name(id)) {}

std::optional<std::string> CachedModel::commit_of(const std::string& revision) const {
  if (is_commit(revision)) return revision;
  std::optional<std::string> commit;
  try {
    commit = read_file_if_there(folder_ + "/refs/" + revision, kMaxRefBytes);
  } catch (const UserError&) {
  }
  while (commit && commit->ends_with('\n')) commit->pop_back();
  return commit && is_commit(*commit) ? commit : std::nullopt;
}

bool CachedModel::has_snapshots() const {
  std::error_code ignored;  // a folder that is missing has none
  return fs::directory_iterator(folder_ + "/snapshots", ignored) != fs::directory_iterator();
}

bool CachedModel::has_blob(const RemoteFile& file) const {
  return size_of(blob(file)) == file.size;
}

std::optional<std::string> CachedModel::path_of(const std::string& commit,
                                                const RemoteFile& file) const {
  if (has_blob(file)) return blob(file);
  std::string path = snapshot(commit) + "/" + file.name;
  if (is_link(path) || size_of(path) != file.size) return std::nullopt;
  return path;
}

uint64_t CachedModel::bytes_there(const RemoteFile& file) const {
  if (has_blob(file)) return file.size;
  return std::min(size_of(blob(file) + ".incomplete").value_or(0), file.size);
}

void CachedModel::create_folders() const {
  create_folder(folder_ + "/blobs");
  create_folder(locks_);
}

FileDescriptor CachedModel::open_lock(const RemoteFile& file) const {
  const std::string path = locks_ + "/" + file.digits + ".lock";
  FileDescriptor lock = open_lock_file(path);
  if (lock.get() < 0) fail_to_write(path);
  return lock;
}

void CachedModel::link(const std::string& commit, const RemoteFile& file) const {
  const fs::path path = fs::path(snapshot(commit)) / file.name;
  if (path_of(commit, file) == path.string()) return;  // a disk without links
  create_own_folder(folder_, path.parent_path());
  const fs::path target = fs::path(blob(file)).lexically_relative(path.parent_path());
  std::error_code none;  // ignored: there may be no link yet
  if (fs::read_symlink(path, none) == target) return;
  // Another process may make the same link at the same time, so it is replaced in one step. The
  // name is random, because processes of two containers may have the same id.
  const std::string unfinished = fmt::format("{}.{:08x}", path.string(), std::random_device()());
  if (::symlink(target.c_str(), unfinished.c_str()) != 0 ||
      ::rename(unfinished.c_str(), path.c_str()) != 0) {
    const int why = errno;
    ::unlink(unfinished.c_str());
    errno = why;
    fail_to_write(path);
  }
}

void CachedModel::set_ref(const std::string& revision, const std::string& commit) const {
  if (is_commit(revision) || commit_of(revision) == commit) return;
  const fs::path path = fs::path(folder_) / "refs" / revision;
  create_own_folder(folder_, path.parent_path());
  replace_file(path, commit);
}

void CachedModel::remove_leftovers(const std::vector<RemoteFile>& files) const {
  for_each_in(folder_ + "/blobs", [&](const fs::directory_entry& entry) {
    const std::string name = entry.path().filename();
    if (!name.ends_with(".incomplete")) return;
    const std::string digits = name.substr(0, name.find('.'));
    const auto file = std::ranges::find(files, digits, &RemoteFile::digits);
    if (file == files.end() || !has_blob(*file)) return;
    const FileDescriptor lock = open_lock_file(locks_ + "/" + digits + ".lock");
    // An error is ignored, because a file in another user's cache may not be removable.
    if (lock.get() >= 0 && ::flock(lock.get(), LOCK_EX | LOCK_NB) == 0)
      ::unlink(entry.path().c_str());
  });
}

std::vector<std::string> missing_files(const std::string& snapshot, bool needs_weights) {
  std::vector<std::string> names = {"config.json", "tokenizer.json"};
  const std::string index = snapshot + "/" + kWeightsIndex;
  if (needs_weights && !path_exists(snapshot + "/" + kSingleWeights) && path_exists(index)) {
    const std::set<std::string> shards = shards_of_index(read_file(index, kMaxIndexBytes), index);
    names.insert(names.end(), shards.begin(), shards.end());
  } else if (needs_weights) {
    names.emplace_back(kSingleWeights);
  }
  std::erase_if(names, [&](const std::string& name) { return path_exists(snapshot + "/" + name); });
  return names;
}

bool lacks_only_tokenizer(const std::string& snapshot, const std::vector<std::string>& missing) {
  constexpr const char* kTokenizer = "tokenizer.json";
  return missing == std::vector<std::string>{kTokenizer} &&
         !is_link(fs::path(snapshot) / kTokenizer);
}

std::vector<std::string> list_ids(const std::string& cache_folder) {
  std::vector<std::string> ids;
  for_each_in(cache_folder, [&](const fs::directory_entry& entry) {
    std::error_code ignored;
    std::string id = id_of_folder_name(entry.path().filename().string());
    if (!id.empty() && entry.is_directory(ignored)) ids.push_back(std::move(id));
  });
  std::ranges::sort(ids);
  return ids;
}

std::vector<CacheEntry> list_models(const std::string& cache_folder) {
  std::vector<CacheEntry> entries;
  for (const std::string& id : list_ids(cache_folder)) {
    CacheEntry entry{.id = id};
    const fs::path folder = fs::path(cache_folder) / folder_name(id);
    for (const char* part : {"blobs", "snapshots"}) {
      std::error_code ignored;
      for (fs::recursive_directory_iterator at(folder / part, ignored), end; at != end;
           at.increment(ignored))
        count_file(at->path(), entry);
    }
    for_each_in(folder / "snapshots", [&](const fs::directory_entry& snapshot) {
      try {
        const auto missing = missing_files(snapshot.path(), /*needs_weights=*/true);
        if (missing.empty() || lacks_only_tokenizer(snapshot.path(), missing))
          entry.is_complete = true;
      } catch (const UserError&) {  // an index that is not valid
      }
    });
    entries.push_back(std::move(entry));
  }
  return entries;
}

void remove_model(const std::string& cache_folder, const std::string& id) {
  const std::vector<std::string> ids = list_ids(cache_folder);
  const std::optional<ModelId> parsed = parse_model_id(id);
  const std::string name = parsed ? parsed->name : id;
  require(std::ranges::count(ids, name) > 0, "{} is not in the cache {}{}", name, cache_folder,
          did_you_mean(name, ids));
  require(name == id, "{}: all revisions are removed together: nanovllm remove {}", id, name);
  const fs::path folder = fs::path(cache_folder) / folder_name(id);
  const fs::path locks = fs::path(cache_folder) / ".locks" / folder_name(id);
  std::vector<FileDescriptor> held;
  for_each_in(locks, [&](const fs::directory_entry& entry) {
    held.push_back(open_lock_file(entry.path()));
    require(held.back().get() < 0 || ::flock(held.back().get(), LOCK_EX | LOCK_NB) == 0,
            "{} is being downloaded by another process; try again when that has ended", id);
  });
  std::error_code error;
  const auto remove = [&](const fs::path& path) {
    fs::remove_all(path, error);
    require(!error, "{}: {}", path.string(), error.message());
  };
  // Links are removed first, so that no snapshot is ever left without some of its blobs.
  for (const char* part : {"refs", "snapshots", "blobs"}) remove(folder / part);
  // The folder may be a link to another disk. Other files in that folder are kept.
  if (is_link(folder)) fs::remove(fs::canonical(folder, error), error);
  remove(folder);
  remove(locks);
}

void mark_used(const std::string& snapshot) {
  const timespec times[] = {{0, UTIME_NOW}, {0, UTIME_OMIT}};
  // In a cache that others own this may fail, which does not matter.
  (void)!::utimensat(AT_FDCWD, (snapshot + "/config.json").c_str(), times, 0);
}

}  // namespace nanovllm::hub
