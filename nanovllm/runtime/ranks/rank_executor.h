#pragma once

#include <memory>

#include "nanovllm/runtime/ranks/executor.h"
#include "nanovllm/runtime/ranks/worker_processes.h"

namespace nanovllm {

class ModelRunner;

/// Rank 0 in this process and the others in theirs. A step that fails in any of them, a process
/// that ends and ranks that hang make wait() throw EngineDead with the reason.
class RankExecutor : public Executor {
 public:
  /// `local` runs rank 0. Waits until all ranks are ready; throws what keeps one from it.
  RankExecutor(std::unique_ptr<WorkerProcesses> workers, std::unique_ptr<Executor> local);

  void submit(const StepInput& input) override;
  const StepOutput& wait() override;

 private:
  std::unique_ptr<WorkerProcesses> workers_;
  std::unique_ptr<Executor> local_;  // last: its last steps need the others
};

/// A worker's rank: runs what rank 0 sends until it stops.
void run_steps(RankMemory& memory, ModelRunner& runner);

}  // namespace nanovllm
