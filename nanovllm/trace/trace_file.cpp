#include "nanovllm/trace/trace_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>

#include "nanovllm/base/check.h"
#include "nanovllm/base/system/clock.h"
#include "nanovllm/base/terminal/logging.h"

namespace nanovllm {

namespace {

/// The format's unit is the microsecond. Nanoseconds are exact, so that slices that touch do so in
/// the file too.
std::string microseconds(int64_t nanoseconds) {
  return fmt::format("{}.{:03}", nanoseconds / 1000, nanoseconds % 1000);
}

/// What belongs to the process as a whole is written for the thread with its number: Perfetto takes
/// thread 0 for the idle thread of a processor.
TraceFile::Track own_track(int process) { return {process, static_cast<uint64_t>(process)}; }

}  // namespace

TraceFile::TraceFile(const std::string& path)
    : path_(path),
      file_(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666)),
      start_(steady_seconds()) {
  require(file_.get() >= 0, "cannot write the trace to {}: {}", path, std::strerror(errno));
}

TraceFile::~TraceFile() {
  try {
    buffer_ += is_empty_ ? "[\n]\n" : "\n]\n";
    flush();
  } catch (const std::exception&) {  // out of memory: the file has no end, as after a crash
  }
}

int64_t TraceFile::nanoseconds(double seconds) const {
  return std::max<int64_t>(0, std::llround((seconds - start_) * 1e9));
}

void TraceFile::add(char phase, Track track, std::string_view name, int64_t at,
                    std::string_view rest, std::string_view args) {
  buffer_ += is_empty_ ? "[\n" : ",\n";
  is_empty_ = false;
  buffer_ += fmt::format(R"({{"ph":"{}","pid":{},"tid":{},"name":"{}","ts":{}{})", phase,
                         track.process, track.thread, name, microseconds(at), rest);
  if (!args.empty()) buffer_ += fmt::format(R"(,"args":{{{}}})", args);
  buffer_ += '}';
}

void TraceFile::name_process(int process, std::string_view name) {
  add('M', own_track(process), "process_name", 0, "", fmt::format(R"("name":"{}")", name));
}

void TraceFile::name_track(Track track, std::string_view name) {
  add('M', track, "thread_name", 0, "", fmt::format(R"("name":"{}")", name));
}

void TraceFile::slice(Track track, std::string_view name, double begin, double end,
                      std::string_view args, TraceFlow flow) {
  const int64_t first = nanoseconds(begin), last = std::max(first, nanoseconds(end));
  std::string rest = fmt::format(R"(,"dur":{})", microseconds(last - first));
  if (flow.id != 0) rest += fmt::format(R"(,"bind_id":"{:#x}")", flow.id);
  if (flow.in) rest += R"(,"flow_in":true)";
  if (flow.out) rest += R"(,"flow_out":true)";
  add('X', track, name, first, rest, args);
}

void TraceFile::begin(Track track, std::string_view name, double at, std::string_view args) {
  add('B', track, name, nanoseconds(at), "", args);
}

void TraceFile::end(Track track, double at, std::string_view args) {
  add('E', track, "", nanoseconds(at), "", args);
}

void TraceFile::counter(int process, std::string_view name, double at, int64_t value) {
  add('C', own_track(process), name, nanoseconds(at), "", fmt::format(R"("value":{})", value));
}

void TraceFile::flush() {
  std::string_view rest = buffer_;
  while (file_.get() >= 0 && !rest.empty()) {
    const ssize_t n = ::write(file_.get(), rest.data(), rest.size());
    if (n >= 0) {
      rest.remove_prefix(static_cast<size_t>(n));
    } else if (errno != EINTR) {
      log().warn("the trace ends early: cannot write to {}: {}", path_, std::strerror(errno));
      file_ = FileDescriptor();
    }
  }
  buffer_.clear();
}

}  // namespace nanovllm
