#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "nanovllm/base/system/child_process.h"
#include "nanovllm/base/system/file_descriptor.h"
#include "nanovllm/ops/communicator.h"
#include "nanovllm/runtime/ranks/step_channel.h"

namespace nanovllm {

/// The exit status of a worker whose build is not that of rank 0.
constexpr int kExitOtherBuild = 3;

/// The memory that all ranks map, and the objects in it. It is a memfd, which has no name and is
/// freed when the last process that uses it ends (`cleanup.no-names`).
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
  FileDescriptor fd_;
  std::unique_ptr<void, std::function<void(void*)>> memory_;
  std::unique_ptr<Communicator> ranks_;
  std::unique_ptr<StepChannel> channel_;
};

/// The processes of ranks 1 to world - 1. If one ends, or if no rank makes progress although there
/// is work, a thread aborts the Communicator and kills them all (`ranks.one-failure-ends-all`).
class WorkerProcesses {
 public:
  /// Starts `binary` with `arguments` and --rank R --memory FD --parent FD. Throws UserError.
  WorkerProcesses(const std::string& binary, const std::vector<std::string>& arguments, int world,
                  double step_timeout);
  /// Ends the processes: ranks that are ready are asked to stop, others are killed.
  ~WorkerProcesses();

  Communicator& ranks() { return memory_.ranks(); }
  StepChannel& channel() { return memory_.channel(); }
  /// To be called when all ranks have loaded the model.
  void set_ready() { ready_ = true; }
  /// Aborts the Communicator, unless it is already aborted, and kills the processes.
  void abort(const std::string& why) {
    ranks().abort(why);
    kill_all();
  }

 private:
  struct Worker {
    ChildProcess process;
    // Only the worker has the other end, so each side notices the other's end. It may write why.
    FileDescriptor socket;
  };
  void start(int rank, std::vector<std::string> arguments);
  void watch(double step_timeout);
  void kill_all() {
    for (Worker& worker : workers_) worker.process.kill();
    for (Worker& worker : workers_) worker.process.wait();
  }
  /// Aborts the Communicator with a text that says how worker number `i` ended.
  void report_end(size_t i, int status);

  std::string binary_;
  RankMemory memory_;
  std::vector<Worker> workers_;
  std::atomic<bool> ready_ = false, stopping_ = false;
  FileDescriptor wake_;  // of the watching thread
  std::jthread watcher_;
};

}  // namespace nanovllm
