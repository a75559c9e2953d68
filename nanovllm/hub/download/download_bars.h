#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

namespace nanovllm::hub {

/// The progress of the download of a file. The file's thread writes it and DownloadBars reads it.
struct FileProgress {
  enum State { kWaiting, kRunning, kFinished };
  std::string name;
  uint64_t size = 0;
  std::atomic<uint64_t> done = 0;
  std::atomic<State> state = kWaiting;
  std::chrono::steady_clock::time_point start;  ///< valid once it is running
  uint64_t done_at_start = 0;                   ///< bytes that an earlier download left

  void begin(uint64_t bytes_there);
};

/// Progress bars on stderr, one for each file that is being downloaded; the bars of finished files
/// stay above them. They are drawn only if stderr is a terminal with escape sequences.
class DownloadBars {
 public:
  /// `files` must exist as long as this object.
  explicit DownloadBars(const std::vector<FileProgress*>& files);
  /// Draws the bars a last time.
  ~DownloadBars();
  DownloadBars(const DownloadBars&) = delete;
  DownloadBars& operator=(const DownloadBars&) = delete;

  /// Adds a line for the user, which the next draw() prints. Thread-safe.
  void note(std::string line);
  void draw();

 private:
  std::vector<FileProgress*> files_;  // files whose last bar was not drawn yet
  bool enabled_;
  int num_lines_ = 0;  // lines of the bars that are visible below the finished ones
  std::mutex mutex_;   // guards notes_
  std::vector<std::string> notes_;
};

/// The bar of a file in at most `columns` columns, as tqdm draws it: "model.safetensors:  45%|████▌
/// | 680M/1.50G [00:12<00:15, 55.2MB/s]". If the name is long, only its end is shown.
std::string bar_of_file(const std::string& name, uint64_t size, uint64_t done, double elapsed,
                        double bytes_per_second, int columns);

/// A size with three digits: "1.50G".
std::string short_size(double bytes);
/// A size with three digits for a sentence: "1.50 GB".
std::string size_text(uint64_t bytes);

}  // namespace nanovllm::hub
