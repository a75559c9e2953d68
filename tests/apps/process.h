#pragma once

#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

extern char** environ;

namespace nanovllm::testing {

inline const std::string kSource = NANOVLLM_SOURCE_DIR;
inline const std::string kTinyTales = kSource + "/models/tiny-tales";
inline const std::string kLlama = kSource + "/tests/variants/llama";

struct Result {
  int status = -1;  ///< exit status, or 1000 + the signal that ended it
  std::string out, err;

  int num_error_lines() const {
    int n = 0;
    for (const char c : err) n += c == '\n' ? 1 : 0;
    return n;
  }
};

/// A run of the nanovllm binary with pipes on its standard streams, or a file as its stdout.
struct Process {
  std::string program = NANOVLLM_BINARY;
  std::string input = {};
  bool keep_stdin_open = false;     ///< after the input, until the program has ended
  std::string stdout_path = {};     ///< instead of a pipe
  bool close_stdout_early = false;  ///< the reading end is closed at once
  std::vector<int> closed = {};     ///< standard streams that are closed from the start
  /// Called with the output so far. A result above 0 is a signal that is then sent once.
  std::function<int(const std::string& out)> signal_when = nullptr;
  std::function<void(pid_t)> when_started = nullptr;  ///< no output is read while it runs

  Result run(std::vector<std::string> args) const {
    std::array<int, 2> in{}, out{}, err{};
    if (::pipe2(in.data(), O_CLOEXEC) != 0 || ::pipe2(out.data(), O_CLOEXEC) != 0 ||
        ::pipe2(err.data(), O_CLOEXEC) != 0)
      return {};
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, in[0], 0);
    posix_spawn_file_actions_adddup2(&actions, err[1], 2);
    if (stdout_path.empty()) posix_spawn_file_actions_adddup2(&actions, out[1], 1);
    else posix_spawn_file_actions_addopen(&actions, 1, stdout_path.c_str(), O_WRONLY, 0);
    for (const int fd : closed) posix_spawn_file_actions_addclose(&actions, fd);
    // A child that ends without reading its input must not end the test program.
    std::signal(SIGPIPE, SIG_IGN);
    ::setenv("HF_HUB_OFFLINE", "1", 1);  // a name that could be an id is not looked for on the hub
    posix_spawnattr_t attributes;
    posix_spawnattr_init(&attributes);
    sigset_t defaults;
    sigemptyset(&defaults);
    sigaddset(&defaults, SIGPIPE);
    posix_spawnattr_setsigdefault(&attributes, &defaults);
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGDEF);
    args.insert(args.begin(), program);
    std::vector<char*> argv;
    for (std::string& arg : args) argv.push_back(arg.data());
    argv.push_back(nullptr);
    pid_t pid = -1;
    if (::posix_spawn(&pid, program.c_str(), &actions, &attributes, argv.data(), environ) != 0)
      return {};
    posix_spawn_file_actions_destroy(&actions);
    posix_spawnattr_destroy(&attributes);
    for (const int fd : {in[0], out[1], err[1]}) ::close(fd);
    if (close_stdout_early) ::close(out[0]);
    // The inputs are smaller than a pipe's buffer, or the program reads all of them before it
    // writes.
    for (size_t done = 0; done < input.size();) {
      const ssize_t n = ::write(in[1], input.data() + done, input.size() - done);
      if (n <= 0) break;
      done += static_cast<size_t>(n);
    }
    if (!keep_stdin_open) ::close(in[1]);

    if (when_started) when_started(pid);
    Result result;
    std::array<pollfd, 2> fds = {pollfd{close_stdout_early ? -1 : out[0], POLLIN, 0},
                                 pollfd{err[0], POLLIN, 0}};
    bool signalled = signal_when == nullptr;
    while (fds[0].fd >= 0 || fds[1].fd >= 0) {
      ::poll(fds.data(), fds.size(), -1);
      for (size_t i = 0; i < fds.size(); ++i) {
        if (fds[i].fd < 0 || fds[i].revents == 0) continue;
        std::array<char, 4096> buffer;
        const ssize_t n = ::read(fds[i].fd, buffer.data(), buffer.size());
        if (n > 0) {
          (i == 0 ? result.out : result.err).append(buffer.data(), static_cast<size_t>(n));
        } else {
          ::close(fds[i].fd);
          fds[i].fd = -1;
        }
      }
      if (!signalled) {
        const int number = signal_when(result.out);
        signalled = number > 0;
        if (signalled) ::kill(pid, number);
      }
    }
    if (keep_stdin_open) ::close(in[1]);
    int status = 0;
    ::waitpid(pid, &status, 0);
    result.status = WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
    return result;
  }
};

/// Runs the shell command `line`, in which "$@" is the binary with `args`.
inline Result run_in_shell(const std::string& line, std::vector<std::string> args) {
  args.insert(args.begin(), {"-c", line, "sh", NANOVLLM_BINARY});
  return Process{.program = "/bin/sh"}.run(args);
}

inline Result run(const std::vector<std::string>& args, const std::string& input = "") {
  return Process{.input = input}.run(args);
}

}  // namespace nanovllm::testing
