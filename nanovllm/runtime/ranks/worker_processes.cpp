#include "nanovllm/runtime/ranks/worker_processes.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <string_view>
#include <utility>

#include "nanovllm/base/check.h"
#include "nanovllm/base/system/threads.h"
#include "nanovllm/base/to_size.h"

namespace nanovllm {

namespace {

// The timeout is split into 8 ticks; 7 ticks without progress mean that the ranks hang. Counting
// ticks, not time, tolerates SIGSTOP: a process that was stopped is not late when it continues.
constexpr int kTicks = 8;
// While the model loads, progress is reported more rarely than by steps.
constexpr int kStartTimeoutFactor = 10;
constexpr int kExitMilliseconds = 5000;

void check_system(bool condition, const char* what) {
  if (!condition) throw std::runtime_error(fmt::format("{}: {}", what, std::strerror(errno)));
}

size_t memory_bytes() { return StepChannel::bytes() + Communicator::bytes(); }

FileDescriptor new_memory() {
  FileDescriptor fd(memfd_create("nanovllm", MFD_CLOEXEC));
  check_system(fd.get() >= 0 && ftruncate(fd.get(), static_cast<off_t>(memory_bytes())) == 0,
               "memory for the ranks");
  return fd;
}

}  // namespace

RankMemory::RankMemory(int world) : RankMemory(new_memory(), {0, world}) {}

RankMemory::RankMemory(FileDescriptor fd, Rank rank) : fd_(std::move(fd)) {
  const size_t bytes = memory_bytes();
  void* const p = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd_.get(), 0);
  check_system(p != MAP_FAILED, "memory for the ranks");
  memory_ = {p, [bytes](void* q) { munmap(q, bytes); }};
  ranks_ = std::make_unique<Communicator>(static_cast<char*>(p) + StepChannel::bytes(), rank);
  channel_ = std::make_unique<StepChannel>(p, *ranks_);
}

WorkerProcesses::WorkerProcesses(const std::string& binary,
                                 const std::vector<std::string>& arguments, int world,
                                 double step_timeout)
    : binary_(binary),
      memory_(world),
      workers_(to_size(world - 1)),
      wake_(eventfd(0, EFD_CLOEXEC)) {
  check_system(wake_.get() >= 0, "eventfd");
  try {
    for (int rank = 1; rank < world; ++rank) start(rank, arguments);
    watcher_ = start_thread("the thread that watches the ranks",
                            [this, step_timeout] { watch(step_timeout); });
  } catch (...) {
    kill_all();
    throw;
  }
}

WorkerProcesses::~WorkerProcesses() {
  stopping_ = true;
  const uint64_t one = 1;
  while (::write(wake_.get(), &one, sizeof one) < 0 && errno == EINTR) {
  }
  watcher_.join();
  if (ready_ && !ranks().aborted()) {
    channel().stop();
    for (const Worker& worker : workers_) {
      pollfd end = {worker.socket.get(), POLLIN, 0};
      if (::poll(&end, 1, kExitMilliseconds) <= 0) break;
    }
  }
  kill_all();
}

void WorkerProcesses::start(int rank, std::vector<std::string> arguments) {
  std::array<int, 2> ends;
  check_system(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) == 0, "socketpair");
  Worker& worker = workers_[to_size(rank - 1)];
  worker.socket = FileDescriptor(ends[0]);
  const FileDescriptor theirs(ends[1]);
  check_system(worker.socket.get() >= 0 && theirs.get() >= 0, "socketpair");
  arguments.insert(arguments.begin(), binary_);
  for (const auto& [name, value] :
       {std::pair("--rank", rank), {"--memory", memory_.fd()}, {"--parent", theirs.get()}})
    arguments.insert(arguments.end(), {name, std::to_string(value)});
  const int error = worker.process.start(arguments, std::array{memory_.fd(), theirs.get()});
  require(error == 0,
          "{}: cannot be started for rank {}: {}; name the nanovllm binary in worker_path", binary_,
          rank, std::strerror(error));
}

void WorkerProcesses::watch(double step_timeout) try {
  std::vector<pollfd> fds = {{wake_.get(), POLLIN, 0}};
  for (const Worker& worker : workers_) fds.push_back({worker.socket.get(), POLLIN, 0});
  const auto tick = static_cast<int>(std::clamp(step_timeout * 1000 / kTicks, 1.0, 3.6e6));
  uint64_t progress = 0;
  int num_idle = 0;
  for (;;) {
    const int num_events = ::poll(fds.data(), fds.size(), tick);
    if (stopping_) return;
    for (size_t i = 0; i < workers_.size() && num_events > 0; ++i)
      if (fds[i + 1].revents != 0) report_end(i, workers_[i].process.wait());
    const uint64_t now = ranks().progress();
    const bool waits = !ready_ || channel().is_busy();
    num_idle = num_events == 0 && waits && now == progress ? num_idle + 1 : 0;
    progress = now;
    if (num_idle >= (kTicks - 1) * (ready_ ? 1 : kStartTimeoutFactor))
      ranks().abort(fmt::format("no rank made progress for {} s (--step-timeout)",
                                step_timeout * (ready_ ? 1 : kStartTimeoutFactor)));
    if (!ranks().aborted()) continue;
    kill_all();
    return ranks().end_waits();
  }
} catch (const std::exception&) {
  abort("out of memory");  // short enough to need no allocation
  ranks().end_waits();
}

void WorkerProcesses::report_end(size_t i, int status) {
  std::array<char, 1024> last_words;
  const ssize_t n =
      ::recv(workers_[i].socket.get(), last_words.data(), last_words.size(), MSG_DONTWAIT);
  const int code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  std::string why;
  if (n > 0)
    why = fmt::format("rank {}: {}", i + 1, std::string_view(last_words.data(), to_size(n)));
  else if (WIFSIGNALED(status))
    why = fmt::format("the process of rank {} was ended by signal {} ({})", i + 1, WTERMSIG(status),
                      strsignal(WTERMSIG(status)));
  else if (code == kExitOtherBuild)
    why = fmt::format(
        "{} is not from the same build as this program; name the nanovllm binary "
        "that belongs to it in worker_path",
        binary_);
  else why = fmt::format("the process of rank {} ended with status {}", i + 1, code);
  ranks().abort(why, /*is_user_error=*/code == (n > 0 ? 2 : kExitOtherBuild));
}

}  // namespace nanovllm
