#include "nanovllm/hub/download/download.h"

#include <signal.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <deque>
#include <exception>
#include <filesystem>
#include <mutex>
#include <set>
#include <thread>

#include "nanovllm/base/check.h"
#include "nanovllm/base/system/files.h"
#include "nanovllm/base/system/threads.h"
#include "nanovllm/base/terminal/escape.h"
#include "nanovllm/hub/cache.h"
#include "nanovllm/hub/download/blob.h"
#include "nanovllm/hub/download/http_errors.h"

namespace nanovllm::hub {

namespace {

constexpr size_t kMaxConnections = 8;
constexpr size_t kMaxListBytes = size_t{1} << 26;

/// While it exists, threads that are started get no signals: Ctrl-C is for the caller's thread, and
/// a broken connection must not end the process.
class SignalsBlocked {
 public:
  SignalsBlocked() {
    sigset_t all;
    ::sigfillset(&all);
    ::pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~SignalsBlocked() { ::pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  SignalsBlocked(const SignalsBlocked&) = delete;
  SignalsBlocked& operator=(const SignalsBlocked&) = delete;

 private:
  sigset_t before_;
};

/// Runs the tasks on a few threads, and `tick` ten times a second on this one. The first exception
/// of a task or of `tick` sets `stop`, and is thrown when all threads have ended.
void run_tasks(std::deque<std::function<void()>> tasks, std::atomic<bool>& stop,
               const std::function<void()>& tick) {
  std::mutex mutex;  // of all below
  std::condition_variable ended;
  std::exception_ptr thrown;
  size_t num_running = 0;
  const auto fail_with = [&](std::exception_ptr error) {
    const std::lock_guard lock(mutex);
    if (!thrown) thrown = std::move(error);
    stop = true;
  };
  const auto work = [&] {
    for (;;) {
      std::function<void()> task;
      {
        const std::lock_guard lock(mutex);
        if (tasks.empty() || stop) {
          --num_running;
          ended.notify_one();
          return;
        }
        task = std::move(tasks.front());
        tasks.pop_front();
      }
      try {
        task();
      } catch (...) {
        fail_with(std::current_exception());
      }
    }
  };
  {
    std::vector<std::jthread> threads;
    const size_t num_threads = std::min(tasks.size(), kMaxConnections);
    threads.reserve(num_threads);
    for (size_t i = 0; i < num_threads; ++i) {
      const SignalsBlocked blocked;
      const std::lock_guard lock(mutex);
      try {
        threads.push_back(start_thread("a thread for a download", work));
      } catch (const UserError&) {
        if (threads.empty()) throw;
        break;  // fewer connections also do
      }
      ++num_running;
    }
    constexpr std::chrono::milliseconds kBetweenTicks{100};
    std::unique_lock lock(mutex);
    while (num_running > 0) {
      ended.wait_for(lock, kBetweenTicks);
      if (stop) continue;
      lock.unlock();
      try {
        tick();
      } catch (...) {
        fail_with(std::current_exception());
      }
      lock.lock();
    }
  }
  if (thrown) std::rethrow_exception(thrown);
}

/// Asks the hub for the commit and the files of the revision.
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
      if (e.is_unreachable()) fail_unreachable(e, id, settings);
      why = fmt::format("{}: {}", settings.shown_endpoint(), e.what());
    }
    backoff.wait(why, retry_after);
  }
}

/// Throws if the disk has not enough space for what is still to be downloaded.
void require_disk_space(const ModelId& id, const std::string& cache_folder, uint64_t needed) {
  std::error_code error;
  const std::filesystem::space_info space = std::filesystem::space(cache_folder, error);
  if (error || needed <= space.available) return;
  throw std::runtime_error(fmt::format(
      "{} needs {} more, but {} has only {} free; free some space (nanovllm remove), or "
      "set HF_HOME to a folder on another disk",
      id.text(), size_text(needed), cache_folder, size_text(space.available)));
}

/// Downloads those of the files whose blobs are not there, each blob once.
void download_files(const DownloadJob& job, std::vector<RemoteFile> files, std::atomic<bool>& stop,
                    const std::function<void()>& check_interrupt) {
  std::set<std::string> blobs;
  std::erase_if(files, [&](const RemoteFile& file) { return !blobs.insert(file.digits).second; });
  const size_t num_all = files.size();
  uint64_t needed = 0;
  std::erase_if(files, [&](const RemoteFile& file) { return job.cached.has_blob(file); });
  if (files.empty()) return;
  job.cached.create_folders();
  for (const RemoteFile& file : files) needed += file.size - job.cached.bytes_there(file);
  const std::string count = files.size() == num_all
                                ? fmt::format("{}", num_all)
                                : fmt::format("{} of {}", files.size(), num_all);
  const std::string line = fmt::format("Downloading {} file{} of {} ({}) from {} to {}", count,
                                       num_all == 1 ? "" : "s", job.id.text(), size_text(needed),
                                       job.settings.shown_endpoint(), job.settings.cache_folder);
  std::fputs((escape_controls(line) + "\n").c_str(), stderr);
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
    check_interrupt();
  });
}

}  // namespace

std::string download_model(const ModelId& id, const Settings& settings, bool needs_weights,
                           const std::function<void()>& check_interrupt) {
  const std::string token = token_from_environment();
  const CachedModel cached(settings.cache_folder, id.name);
  std::atomic<bool> stop = false;
  RemoteModel remote;
  {
    DownloadBars notes({});
    run_tasks({[&] { remote = ask_hub(id, settings, token, stop, notes); }}, stop, [&] {
      notes.draw();
      check_interrupt();
    });
  }
  const DownloadJob job{id, settings, token, remote.commit, cached, stop};
  const std::vector<RemoteFile> small = remote.small_files(id.name);
  if (needs_weights && !remote.has_shards()) remote.weight_files(id.name, {});  // or an error
  download_files(job, small, stop, check_interrupt);
  std::vector<RemoteFile> weights;
  if (needs_weights) {
    std::set<std::string> shards;
    if (remote.has_shards()) {
      const std::string index = cached.blob(small.back());
      shards = shards_of_index(read_file(index, kMaxIndexBytes),
                               fmt::format("{}: {}", id.text(), kWeightsIndex));
    }
    weights = remote.weight_files(id.name, shards);
    download_files(job, weights, stop, check_interrupt);
  }
  // All links are made at the end, the weights' last, so that a snapshot with weights has all other
  // files too, and the revision still means the earlier snapshot while a newer one is downloaded.
  for (const RemoteFile& file : small) cached.link(remote.commit, file);
  for (const RemoteFile& file : weights) cached.link(remote.commit, file);
  cached.set_ref(id.revision, remote.commit);
  cached.remove_leftovers(small);
  cached.remove_leftovers(weights);
  return cached.snapshot(remote.commit);
}

}  // namespace nanovllm::hub
