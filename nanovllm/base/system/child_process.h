#pragma once

#include <sys/types.h>

#include <mutex>
#include <span>
#include <string>
#include <vector>

namespace nanovllm {

/// A child process. Thread-safe after start().
class ChildProcess {
 public:
  /// Runs the program `arguments[0]` in a process group of its own, so that Ctrl-C in a terminal
  /// does not reach it, and with the default signal handlers and mask. It inherits the standard
  /// streams and the descriptors `inherited`, even if they are closed on exec. Returns 0, or the
  /// errno that says why it could not be started.
  int start(std::vector<std::string> arguments, std::span<const int> inherited);
  /// Kills the process, unless its end was waited for.
  void kill();
  /// Waits for the end of the process, which has ended or was killed. Returns its status as
  /// waitpid() does, or 0 if there is nothing to wait for.
  int wait();

 private:
  std::mutex mutex_;
  pid_t pid_ = -1;  // -1: not started, or waited for
};

/// The path of the program `name` that belongs to the library with this address in it: this
/// program, if it has that name, or one in the library's folder or in ../bin from there. Throws
/// UserError that says where it should be and ends with `advice`.
std::string find_program(const std::string& name, const void* address, const char* advice);

/// For a child process: closes all inherited descriptors except the standard streams and these two,
/// and ends this process at once when its parent has ended, whatever it is doing. The parent's end
/// is seen on `socket`, whose other end only the parent has, and which stays open until then.
void end_with_parent(int socket, int kept);

}  // namespace nanovllm
