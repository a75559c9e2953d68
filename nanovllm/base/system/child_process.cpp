#include "nanovllm/base/system/child_process.h"

#include <dlfcn.h>
#include <poll.h>
#include <spawn.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <filesystem>
#include <utility>

#include "nanovllm/base/check.h"
#include "nanovllm/base/system/file_descriptor.h"
#include "nanovllm/base/system/threads.h"

namespace nanovllm {

int ChildProcess::start(std::vector<std::string> arguments, std::span<const int> inherited) {
  std::vector<char*> argv(arguments.size() + 1);  // null at its end
  for (size_t i = 0; i < arguments.size(); ++i) argv[i] = arguments[i].data();
  posix_spawn_file_actions_t files;
  posix_spawn_file_actions_init(&files);
  // posix_spawn lets the child inherit a descriptor with O_CLOEXEC if it is duplicated onto itself.
  for (const int fd : inherited) posix_spawn_file_actions_adddup2(&files, fd, fd);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  sigset_t none, all;
  sigemptyset(&none);
  sigfillset(&all);
  posix_spawnattr_setsigmask(&attributes, &none);
  posix_spawnattr_setsigdefault(&attributes, &all);
  posix_spawnattr_setpgroup(&attributes, 0);
  posix_spawnattr_setflags(&attributes,
                           POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
  const std::lock_guard lock(mutex_);
  const int error = posix_spawn(&pid_, argv[0], &files, &attributes, argv.data(), environ);
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&files);
  if (error != 0) pid_ = -1;
  return error;
}

void ChildProcess::kill() {
  const std::lock_guard lock(mutex_);
  if (pid_ > 0) ::kill(pid_, SIGKILL);
}

int ChildProcess::wait() {
  const std::lock_guard lock(mutex_);
  int status = 0;
  if (pid_ > 0)
    while (::waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
    }
  pid_ = -1;
  return status;
}

std::string find_program(const std::string& name, const void* address, const char* advice) {
  namespace fs = std::filesystem;
  std::error_code error;
  const fs::path program = fs::read_symlink("/proc/self/exe", error);
  if (program.filename() == name) return program.string();
  Dl_info here;
  fs::path folder = program.parent_path();
  if (dladdr(address, &here) != 0) folder = fs::canonical(here.dli_fname, error).parent_path();
  for (const fs::path& place : {folder / name, folder / "../bin" / name})
    if (fs::exists(place, error)) return place.string();
  fail("the {0} binary is not in {1} or {1}/../bin; {2}", name, folder.string(), advice);
}

void end_with_parent(int socket, int kept) {
  unsigned next = 3;
  for (const int open : {std::min(socket, kept), std::max(socket, kept)}) {
    const auto fd = static_cast<unsigned>(open);
    if (fd > next) ::close_range(next, fd - 1, 0);
    next = std::max(next, fd + 1);
  }
  ::close_range(next, ~0U, 0);
  // Another child of the parent may keep the parent's end of the socket open, so the end of the
  // parent's process counts as well.
  FileDescriptor parent(static_cast<int>(syscall(SYS_pidfd_open, getppid(), 0)));
  start_thread("the thread that watches the parent process", [socket, parent = std::move(parent)] {
    std::array<pollfd, 2> ends = {pollfd{socket, POLLIN, 0}, {parent.get(), POLLIN, 0}};
    while (::poll(ends.data(), ends.size(), -1) < 0 && errno == EINTR) {
    }
    ::_exit(1);
  }).detach();
}

}  // namespace nanovllm
