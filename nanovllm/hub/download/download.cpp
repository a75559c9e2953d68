#include "nanovllm/hub/download/download.h"

#include <algorithm>
#include <cstdio>
#include <deque>
#include <filesystem>
#include <optional>
#include <set>

#include "nanovllm/base/check.h"
#include "nanovllm/base/system/files.h"
#include "nanovllm/base/terminal/escape.h"
#include "nanovllm/hub/cache.h"
#include "nanovllm/hub/download/blob.h"
#include "nanovllm/hub/download/http_errors.h"
#include "nanovllm/hub/download/tasks.h"
#include "nanovllm/hub/verify.h"

namespace nanovllm::hub {

namespace {

constexpr size_t kMaxListBytes = size_t{1} << 26;

/// Prints a line on stderr.
void say(const std::string& line) { std::fputs((escape_controls(line) + "\n").c_str(), stderr); }

/// Asks the hub for the commit and the files of the revision. Throws NetworkError if it cannot be
/// reached.
RemoteModel ask_hub(const ModelId& id, const Settings& settings, const std::string& token,
                    const std::atomic<bool>& stop, DownloadBars& notes) {
  const std::string path = fmt::format("/api/models/{}/revision/{}?blobs=true", id.name,
                                       url_part(id.revision, /*keep_slashes=*/false));
  HttpClient client(settings, token, stop);
  Backoff backoff(stop, [&](std::string line) { notes.note(std::move(line)); });
  for (;;) {
    std::string text, why;
    std::optional<int64_t> retry_after;
    try {
      const HttpReply reply = client.get(path, 0, [&](std::string_view bytes) {
        if (text.size() + bytes.size() > kMaxListBytes)
          throw std::runtime_error(fmt::format("{}: the list of files is too long", id.text()));
        text += bytes;
      });
      if (reply.is_ok()) return parse_remote_model(text, settings.shown_endpoint());
      if (!is_temporary(reply)) fail_for(reply, id, settings, !token.empty());
      why = describe_temporary(reply, settings);
      retry_after = reply.retry_after;
    } catch (const NetworkError& e) {
      if (e.is_unreachable()) throw;
      why = fmt::format("{}: {}", settings.shown_endpoint(), e.what());
    }
    backoff.wait(why, retry_after);
  }
}

/// Throws if the disk does not have enough space for the bytes that are still to be downloaded.
void require_disk_space(const ModelId& id, const std::string& cache_folder, uint64_t needed) {
  std::error_code error;
  const std::filesystem::space_info space = std::filesystem::space(cache_folder, error);
  if (error || needed <= space.available) return;
  throw std::runtime_error(fmt::format(
      "{} needs {} more, but {} has only {} free; free some space (nanovllm remove), or "
      "set HF_HOME to a folder on another disk",
      id.text(), size_text(needed), cache_folder, size_text(space.available)));
}

/// The result of a check of the files that the cache has.
struct Verified {
  size_t num_files = 0;
  uint64_t bytes = 0;
};

/// Checks the files that the cache has, and removes the damaged ones.
void remove_damaged(const DownloadJob& job, const std::vector<RemoteFile>& files,
                    std::atomic<bool>& stop, const DownloadOptions& options, Verified& verified) {
  std::vector<FileCheck> checks;
  std::set<std::string> paths;  // equal files share a blob
  for (const RemoteFile& file : files) {
    const auto path = job.cached.path_of(job.commit, file);
    if (!path || !paths.insert(*path).second) continue;
    checks.push_back({*path, file});
    ++verified.num_files;
    verified.bytes += file.size;
  }
  for (const FileCheck& file : damaged_files(checks, stop, options.check_interrupt)) {
    std::error_code error;
    std::filesystem::remove(file.path, error);
    require(!error, "{} is damaged and cannot be removed: {}", file.path, error.message());
    say(
        fmt::format("{} is damaged: its contents do not have the checksum that {} names; "
                    "downloading it again",
                    file.expected.name, job.settings.shown_endpoint()));
  }
}

/// Downloads the files that the cache lacks, each blob once.
void download_files(const DownloadJob& job, std::vector<RemoteFile> files, std::atomic<bool>& stop,
                    const DownloadOptions& options, Verified& verified) {
  std::set<std::string> blobs, needed_blobs;
  for (const RemoteFile& file : files) blobs.insert(file.digits);
  const size_t num_all = blobs.size();
  uint64_t needed = 0;
  if (options.verify) remove_damaged(job, files, stop, options, verified);
  std::erase_if(files, [&](const RemoteFile& file) {
    return job.cached.path_of(job.commit, file) || !needed_blobs.insert(file.digits).second;
  });
  if (files.empty()) return;
  job.cached.create_folders();
  for (const RemoteFile& file : files) needed += file.size - job.cached.bytes_there(file);
  const std::string count = files.size() == num_all
                                ? fmt::format("{}", num_all)
                                : fmt::format("{} of {}", files.size(), num_all);
  say(fmt::format("Downloading {} file{} of {} ({}) from {} to {}", count, num_all == 1 ? "" : "s",
                  job.id.text(), size_text(needed), job.settings.shown_endpoint(),
                  job.settings.cache_folder));
  require_disk_space(job.id, job.settings.cache_folder, needed);

  std::deque<FileProgress> progress(files.size());
  std::vector<FileProgress*> shown;
  for (size_t i = 0; i < files.size(); ++i) {
    progress[i].name = files[i].name;
    progress[i].size = files[i].size;
    shown.push_back(&progress[i]);
  }
  DownloadBars bars(shown);
  std::deque<std::function<void()>> tasks;
  for (size_t i = 0; i < files.size(); ++i)
    tasks.emplace_back([&, i] { download_blob(job, files[i], progress[i], bars); });
  run_tasks(std::move(tasks), stop, [&] {
    bars.draw();
    options.check_interrupt();
  });
}

}  // namespace

std::string download_model(const ModelId& id, const Settings& settings,
                           const DownloadOptions& options) {
  const std::string token = token_from_environment();
  const CachedModel cached(settings.cache_folder, id.name);
  std::atomic<bool> stop = false;
  RemoteModel remote;
  try {
    DownloadBars notes({});
    run_tasks({[&] { remote = ask_hub(id, settings, token, stop, notes); }}, stop, [&] {
      notes.draw();
      options.check_interrupt();
    });
  } catch (const std::runtime_error& error) {
    const auto* const network = dynamic_cast<const NetworkError*>(&error);
    const std::string why =
        network == nullptr
            ? error.what()
            : fmt::format("{} cannot be reached: {}", settings.shown_endpoint(), network->what());
    std::optional<std::string> folder;
    if (options.verify) folder = verify_without_hub(id, settings, why, options.check_interrupt);
    if (folder) return *folder;
    if (network != nullptr) fail_unreachable(*network, id, settings);
    throw;
  }
  const DownloadJob job{id, settings, token, remote.commit, cached, stop};
  const std::vector<RemoteFile> small = remote.small_files(id.name);
  if (options.needs_weights && !remote.has_shards())
    remote.weight_files(id.name, {});  // or an error
  Verified verified;
  download_files(job, small, stop, options, verified);
  std::vector<RemoteFile> weights;
  if (options.needs_weights) {
    std::set<std::string> shards;
    if (remote.has_shards()) {
      const std::string index = cached.path_of(remote.commit, small.back()).value();
      shards = shards_of_index(read_file(index, kMaxIndexBytes),
                               fmt::format("{}: {}", id.text(), kWeightsIndex));
    }
    weights = remote.weight_files(id.name, shards);
    download_files(job, weights, stop, options, verified);
  }
  // All links are made at the end, the weights' last, so that a snapshot with weights has all other
  // files too, and the revision still means the earlier snapshot while a newer one is downloaded.
  for (const RemoteFile& file : small) cached.link(remote.commit, file);
  for (const RemoteFile& file : weights) cached.link(remote.commit, file);
  cached.set_ref(id.revision, remote.commit);
  cached.remove_leftovers(small);
  cached.remove_leftovers(weights);
  if (options.verify)
    say(fmt::format("The checksums of {} file{} of {} ({}) were checked", verified.num_files,
                    verified.num_files == 1 ? "" : "s", id.text(), size_text(verified.bytes)));
  return cached.snapshot(remote.commit);
}

}  // namespace nanovllm::hub
