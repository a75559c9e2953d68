#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "nanovllm/base/system/file_descriptor.h"

namespace nanovllm {

/// The slices with the same number are connected by arrows. An arrow ends at a slice with `in` and
/// starts at one with `out`.
struct TraceFlow {
  uint64_t id = 0;  ///< 0: none
  bool in = false, out = false;
};

/// A file in Chrome's trace-event format ("Trace Event Format", Duca and Sinclair, 2016), which
/// ui.perfetto.dev and chrome://tracing show: a JSON array with one event a line. A viewer does not
/// need the closing bracket, and only whole events are given to the system, so the file is readable
/// at any time, even if the process was killed.
///
/// Names and arguments are written as they are: the caller passes valid JSON. Times are seconds on
/// the steady clock.
class TraceFile {
 public:
  /// A line of the viewer: a thread of a process. No two threads have the same number, not even in
  /// different processes, because Perfetto names threads by their number alone. The thread with the
  /// number of its process is the process's first one; no number is 0.
  struct Track {
    int process = 1;
    uint64_t thread = 1;
  };

  /// Creates the file or empties it. Throws UserError that says why it cannot be written.
  explicit TraceFile(const std::string& path);
  /// Closes the array.
  ~TraceFile();
  TraceFile(const TraceFile&) = delete;
  TraceFile& operator=(const TraceFile&) = delete;

  void name_process(int process, std::string_view name);
  void name_track(Track track, std::string_view name);
  /// What happened on a track from `begin` to `end`. Slices of a track may contain others, but not
  /// overlap. `args` are the members of a JSON object.
  void slice(Track track, std::string_view name, double begin, double end,
             std::string_view args = {}, TraceFlow flow = {});
  /// The two ends of a slice, for one that is still open when the file is read.
  void begin(Track track, std::string_view name, double at, std::string_view args = {});
  void end(Track track, double at, std::string_view args = {});
  /// The value of a counter from `at` on.
  void counter(int process, std::string_view name, double at, int64_t value);

  /// Gives all events to the system. If that fails (a full disk), it logs one warning, and the file
  /// stays as it is.
  void flush();
  size_t num_buffered() const { return buffer_.size(); }

 private:
  void add(char phase, Track track, std::string_view name, int64_t at, std::string_view rest,
           std::string_view args);
  int64_t nanoseconds(double seconds) const;

  std::string path_;
  FileDescriptor file_;
  std::string buffer_;
  double start_;
  bool is_empty_ = true;
};

}  // namespace nanovllm
