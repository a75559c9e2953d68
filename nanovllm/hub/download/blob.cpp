#include "nanovllm/hub/download/blob.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <thread>
#include <vector>

#include "nanovllm/base/check.h"
#include "nanovllm/base/system/input_file.h"
#include "nanovllm/hub/download/http_errors.h"

namespace nanovllm::hub {

namespace {

void wait_for_lock(const FileDescriptor& lock, const DownloadJob& job, const RemoteFile& file,
                   DownloadBars& bars) {
  constexpr std::chrono::milliseconds kBetweenLooks{100};
  for (bool is_first = true; ::flock(lock.get(), LOCK_EX | LOCK_NB) != 0; is_first = false) {
    // Some network file systems have no locks. Then a download that two processes share may have a
    // wrong checksum, and is tried again.
    if (errno != EWOULDBLOCK && errno != EINTR) return;
    if (is_first) bars.note(fmt::format("another process is downloading {}; waiting", file.name));
    if (job.stop) throw Stopped();
    std::this_thread::sleep_for(kBetweenLooks);
  }
}

/// The file that grows while a blob is downloaded, and the checksum of its contents so far.
class IncompleteFile {
 public:
  IncompleteFile(std::string path, const RemoteFile& file)
      : path_(std::move(path)),
        file_(file),
        fd_(::open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666)) {
    if (fd_.get() < 0) fail_to_write(path_);
  }

  /// Keeps the part that an earlier download has left, unless it is too large. Returns its size.
  uint64_t resume(const std::atomic<bool>& stop) {
    const off_t end = ::lseek(fd_.get(), 0, SEEK_END);
    if (end < 0 || static_cast<uint64_t>(end) > file_.size) clear();
    else hash_from_disk(static_cast<uint64_t>(end), stop);
    return size_;
  }
  /// Starts again with an empty file.
  void clear() {
    if (::ftruncate(fd_.get(), 0) != 0) fail_to_write(path_);
    size_ = 0;
    checksum_ = std::make_unique<Checksum>(file_.kind, file_.size);
  }
  void append(std::string_view bytes) {
    if (bytes.size() > file_.size - size_)
      throw std::runtime_error(fmt::format(
          "{}: the server sends more than the {} bytes that it has", file_.name, file_.size));
    for (size_t done = 0; done < bytes.size();) {
      const ssize_t n = ::pwrite(fd_.get(), bytes.data() + done, bytes.size() - done,
                                 static_cast<off_t>(size_ + done));
      if (n < 0 && errno != EINTR) fail_to_write(path_);
      done += static_cast<size_t>(std::max<ssize_t>(n, 0));
    }
    checksum_->add(bytes);
    size_ += bytes.size();
  }
  uint64_t size() const { return size_; }
  bool is_complete() const { return size_ == file_.size; }
  bool has_right_checksum() { return checksum_->digits() == file_.digits; }
  /// Gives the file its final name. It must be on the disk first: after a power failure, a blob
  /// with this name would count as complete.
  void publish(const std::string& path) {
    if (::fdatasync(fd_.get()) != 0 || ::rename(path_.c_str(), path.c_str()) != 0)
      fail_to_write(path_);
  }

 private:
  void hash_from_disk(uint64_t bytes, const std::atomic<bool>& stop) {
    checksum_ = std::make_unique<Checksum>(file_.kind, file_.size);
    checksum_->add_file(InputFile(path_), bytes, [&](uint64_t done) {
      size_ = done;
      if (stop) throw Stopped();
    });
    size_ = bytes;
  }

  std::string path_;
  const RemoteFile& file_;
  FileDescriptor fd_;
  uint64_t size_ = 0;
  std::unique_ptr<Checksum> checksum_;
};

/// Requests the rest of the file until it is complete.
void receive(const DownloadJob& job, const RemoteFile& file, IncompleteFile& incomplete,
             FileProgress& progress, DownloadBars& bars) {
  HttpClient client(job.settings, job.token, job.stop);
  Backoff backoff(job.stop, [&](std::string line) { bars.note(std::move(line)); });
  const std::string path = fmt::format("/{}/resolve/{}/{}", job.id.name, job.commit,
                                       url_part(file.name, /*keep_slashes=*/true));
  const auto on_data = [&](std::string_view bytes) {
    incomplete.append(bytes);
    progress.done = incomplete.size();
  };
  uint64_t most = incomplete.size();
  while (!incomplete.is_complete()) {
    const uint64_t before = incomplete.size();
    std::string why;
    std::optional<int64_t> retry_after;
    try {
      const HttpReply reply = client.get(path, before, on_data);
      if (reply.cannot_resume) {
        incomplete.clear();
        why = fmt::format("{}: the server cannot send only the rest", file.name);
      } else if (is_temporary(reply)) {
        why = fmt::format("{}: {}", file.name, describe_temporary(reply, job.settings));
        retry_after = reply.retry_after;
      } else if (!reply.is_ok()) {
        fail_for(reply, job.id, job.settings, !job.token.empty(), file.name);
      } else {
        why = fmt::format("{}: the server ends it after {} of {} bytes", file.name,
                          incomplete.size(), file.size);
      }
    } catch (const NetworkError& e) {
      why = fmt::format("{}: the download was interrupted ({})", file.name, e.what());
    }
    progress.done = incomplete.size();
    if (incomplete.is_complete()) return;
    // Bytes that are received for the second time are no progress.
    if (incomplete.size() > most) backoff.reset();
    most = std::max(most, incomplete.size());
    backoff.wait(why, retry_after);
  }
}

}  // namespace

void download_blob(const DownloadJob& job, const RemoteFile& file, FileProgress& progress,
                   DownloadBars& bars) {
  const std::string blob = job.cached.blob(file);
  const FileDescriptor lock = job.cached.open_lock(file);
  wait_for_lock(lock, job, file, bars);
  if (job.cached.has_blob(file)) {  // another process has just finished it
    progress.begin(file.size);
    progress.state = FileProgress::kFinished;
    return;
  }
  IncompleteFile incomplete(blob + ".incomplete", file);
  const uint64_t resumed = incomplete.resume(job.stop);
  progress.begin(resumed);
  receive(job, file, incomplete, progress, bars);
  bool is_right = incomplete.has_right_checksum();
  if (!is_right && resumed > 0) {  // perhaps only the earlier part is wrong
    bars.note(fmt::format("{}: wrong checksum; downloading it again from the start", file.name));
    incomplete.clear();
    receive(job, file, incomplete, progress, bars);
    is_right = incomplete.has_right_checksum();
  }
  if (!is_right) {
    ::unlink((blob + ".incomplete").c_str());
    throw std::runtime_error(
        fmt::format("{}: {} has a wrong checksum, so it was deleted; try again, and if that does "
                    "not help, the hub or a proxy changes the file",
                    job.id.text(), file.name));
  }
  incomplete.publish(blob);
  progress.state = FileProgress::kFinished;
}

}  // namespace nanovllm::hub
