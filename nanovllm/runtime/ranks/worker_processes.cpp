#include "nanovllm/runtime/ranks/worker_processes.h"

#include <poll.h>
#include <spawn.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <string_view>
#include <utility>

#include "nanovllm/base/check.h"
#include "nanovllm/base/system/threads.h"

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

}  // namespace

// -- memory

RankMemory::RankMemory(int world) : fd_(memfd_create("nanovllm", MFD_CLOEXEC)) {
  check_system(fd_.get() >= 0 &&
                   ftruncate(fd_.get(),
                             static_cast<off_t>(StepChannel::bytes() + Communicator::bytes())) == 0,
               "memory for the ranks");
  map({0, world});
  channel_->open();
}

RankMemory::RankMemory(FileDescriptor fd, Rank rank) : fd_(std::move(fd)) { map(rank); }

void RankMemory::map(Rank rank) {
  const size_t bytes = StepChannel::bytes() + Communicator::bytes();
  void* const p = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd_.get(), 0);
  check_system(p != MAP_FAILED, "memory for the ranks");
  memory_ = {p, [bytes](void* q) { munmap(q, bytes); }};
  ranks_ = std::make_unique<Communicator>(static_cast<char*>(p) + StepChannel::bytes(), rank);
  channel_ = std::make_unique<StepChannel>(p, *ranks_);
}

// -- processes

WorkerProcesses::WorkerProcesses(const std::string& binary,
                                 const std::vector<std::string>& arguments, int world,
                                 double step_timeout)
    : binary_(binary),
      memory_(world),
      workers_(static_cast<size_t>(world - 1)),
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
  Worker& worker = workers_[static_cast<size_t>(rank - 1)];
  worker.socket = FileDescriptor(ends[0]);
  const FileDescriptor theirs(ends[1]);
  check_system(worker.socket.get() >= 0 && theirs.get() >= 0, "socketpair");
  arguments.insert(arguments.begin(), binary_);
  for (const auto& [name, value] :
       {std::pair("--rank", rank), {"--memory", memory_.fd()}, {"--parent", theirs.get()}})
    arguments.insert(arguments.end(), {name, std::to_string(value)});
  std::vector<char*> argv(arguments.size() + 1);  // null at its end
  for (size_t i = 0; i < arguments.size(); ++i) argv[i] = arguments[i].data();

  posix_spawn_file_actions_t files;
  posix_spawn_file_actions_init(&files);
  // posix_spawn lets the child inherit a descriptor with O_CLOEXEC if it is duplicated onto itself.
  for (const int fd : {memory_.fd(), theirs.get()})
    posix_spawn_file_actions_adddup2(&files, fd, fd);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  // In a separate process group, so that Ctrl-C in a terminal reaches only rank 0, and with the
  // default signal handlers and mask.
  sigset_t none, all;
  sigemptyset(&none);
  sigfillset(&all);
  posix_spawnattr_setsigmask(&attributes, &none);
  posix_spawnattr_setsigdefault(&attributes, &all);
  posix_spawnattr_setpgroup(&attributes, 0);
  posix_spawnattr_setflags(&attributes,
                           POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
  const int error =
      posix_spawn(&worker.pid, binary_.c_str(), &files, &attributes, argv.data(), environ);
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&files);
  if (error == 0) return;
  worker.pid = -1;
  fail("{}: cannot be started for rank {}: {}; name the nanovllm binary in worker_path", binary_,
       rank, std::strerror(error));
}

void WorkerProcesses::abort(const std::string& why) {
  ranks().abort(why);
  kill_all();
}

void WorkerProcesses::watch(double step_timeout) {
  try {
    watch_ranks(step_timeout);
  } catch (const std::exception&) {
    ranks().abort("out of memory");  // short enough to need no allocation
    kill_all();
    ranks().end_waits();
  }
}

void WorkerProcesses::watch_ranks(double step_timeout) {
  std::vector<pollfd> fds = {{wake_.get(), POLLIN, 0}};
  for (const Worker& worker : workers_) fds.push_back({worker.socket.get(), POLLIN, 0});
  const auto tick = static_cast<int>(std::clamp(step_timeout * 1000 / kTicks, 1.0, 3.6e6));
  uint64_t progress = 0;
  int num_idle = 0;
  for (;;) {
    const int num_events = ::poll(fds.data(), fds.size(), tick);
    if (stopping_) return;
    for (size_t i = 0; i < workers_.size() && num_events > 0; ++i)
      if (fds[i + 1].revents != 0) report_end(i, take_end(i));
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
}

void WorkerProcesses::kill_all() {
  for (const Worker& worker : workers_) {
    const std::lock_guard lock(mutex_);
    if (worker.pid > 0) ::kill(worker.pid, SIGKILL);
  }
  for (size_t i = 0; i < workers_.size(); ++i) take_end(i);
}

int WorkerProcesses::take_end(size_t i) {
  const std::lock_guard lock(mutex_);
  int status = 0;
  if (workers_[i].pid > 0)
    while (::waitpid(workers_[i].pid, &status, 0) < 0 && errno == EINTR) {
    }
  workers_[i].pid = -1;
  return status;
}

void WorkerProcesses::report_end(size_t i, int status) {
  std::array<char, 1024> last_words;
  const ssize_t n =
      ::recv(workers_[i].socket.get(), last_words.data(), last_words.size(), MSG_DONTWAIT);
  if (n > 0) {
    const std::string_view text(last_words.data(), static_cast<size_t>(n));
    return ranks().abort(fmt::format("rank {}: {}", i + 1, text),
                         /*is_user_error=*/WIFEXITED(status) && WEXITSTATUS(status) == 2);
  }
  if (WIFSIGNALED(status))
    ranks().abort(fmt::format("the process of rank {} was ended by signal {} ({})", i + 1,
                              WTERMSIG(status), strsignal(WTERMSIG(status))));
  else if (WEXITSTATUS(status) == kExitOtherBuild)
    ranks().abort(
        fmt::format("{} is not from the same build as this program; name the nanovllm binary "
                    "that belongs to it in worker_path",
                    binary_),
        /*is_user_error=*/true);
  else
    ranks().abort(
        fmt::format("the process of rank {} ended with status {}", i + 1, WEXITSTATUS(status)));
}

void end_with_parent(int socket, int memory) {
  unsigned next = 3;
  for (const int kept : {std::min(socket, memory), std::max(socket, memory)}) {
    const auto fd = static_cast<unsigned>(kept);
    if (fd > next) ::close_range(next, fd - 1, 0);
    next = std::max(next, fd + 1);
  }
  ::close_range(next, ~0U, 0);
  // A process that rank 0 forked may keep rank 0's end of the socket open, so the end of rank 0's
  // process counts as well.
  FileDescriptor parent(static_cast<int>(syscall(SYS_pidfd_open, getppid(), 0)));
  start_thread("the thread that watches rank 0", [socket, parent = std::move(parent)] {
    std::array<pollfd, 2> ends = {pollfd{socket, POLLIN, 0}, {parent.get(), POLLIN, 0}};
    while (::poll(ends.data(), ends.size(), -1) < 0 && errno == EINTR) {
    }
    ::_exit(1);
  }).detach();
}

}  // namespace nanovllm
