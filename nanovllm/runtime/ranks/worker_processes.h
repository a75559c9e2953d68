#pragma once

#include <sys/types.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "nanovllm/base/system/file_descriptor.h"
#include "nanovllm/ops/communicator.h"
#include "nanovllm/runtime/ranks/step_channel.h"

namespace nanovllm {

/// A worker's exit status where rank 0 is of another build.
constexpr int kExitOtherBuild = 3;

/// The memory that all ranks map, and what lies in it: a memfd, which has no name and goes with its
/// last user.
class RankMemory {
 public:
  /// New memory, for rank 0 of `world`.
  explicit RankMemory(int world);
  /// The memory behind an inherited descriptor.
  RankMemory(FileDescriptor fd, Rank rank);

  int fd() const { return fd_.get(); }
  Communicator& ranks() { return *ranks_; }
  StepChannel& channel() { return *channel_; }

 private:
  void map(Rank rank);

  FileDescriptor fd_;
  std::unique_ptr<void, std::function<void(void*)>> memory_;
  std::unique_ptr<Communicator> ranks_;
  std::unique_ptr<StepChannel> channel_;
};

/// The processes of ranks 1 to world - 1. A thread watches them: where one ends, or while there is
/// work none of the ranks gets on, it aborts the Communicator and kills them all.
class WorkerProcesses {
 public:
  /// Starts `binary` with `arguments` and, after them, --rank R --memory FD --parent FD. Throws
  /// UserError where it cannot be started.
  WorkerProcesses(const std::string& binary, const std::vector<std::string>& arguments, int world,
                  double step_timeout);
  /// Ends them: those that are ready by themselves, others are killed.
  ~WorkerProcesses();

  Communicator& ranks() { return memory_.ranks(); }
  StepChannel& channel() { return memory_.channel(); }
  /// All ranks have loaded the model.
  void set_ready() { ready_ = true; }
  /// Aborts the Communicator, for this reason unless there is one already, and kills them.
  void abort(const std::string& why);

 private:
  struct Worker {
    pid_t pid = -1;         // none: its end was taken note of
    FileDescriptor socket;  // its other end is the worker's alone: each sees the other's death
  };
  void start(int rank, std::vector<std::string> arguments);
  void watch(double step_timeout);
  void watch_ranks(double step_timeout);
  void kill_all();
  /// Waits for worker number `i`, which has ended or must; its status as waitpid() gives it, or 0.
  int take_end(size_t i);
  /// Tells all ranks how worker number `i` ended, unless they know a reason already.
  void report_end(size_t i, int status);

  std::string binary_;
  RankMemory memory_;
  std::vector<Worker> workers_;
  std::mutex mutex_;  // of workers_' pids
  std::atomic<bool> ready_ = false, stopping_ = false;
  FileDescriptor wake_;  // of the watching thread
  std::jthread watcher_;
};

/// A worker's side: keeps of the descriptors that it inherited only the standard streams and these,
/// and ends this process at once when rank 0's is gone, whatever it is doing. The socket stays open
/// to its end: what is written there is what rank 0 says of the end of this process.
void end_with_parent(int socket, int memory);

}  // namespace nanovllm
