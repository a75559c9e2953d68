#pragma once

#include <memory>
#include <string>

#include "nanovllm/base/config.h"
#include "nanovllm/runtime/step_io.h"

namespace nanovllm {

struct EngineSetup;

/// The engine's interface to all ranks: it takes steps and returns their outputs in the same order
/// (`order.steps`). At most two steps may be submitted and not waited for. One thread uses it.
class Executor {
 public:
  virtual ~Executor() = default;

  /// Gives a step to every rank and returns without waiting for the step. `input` is not needed
  /// afterwards. After an exception, the executor cannot be used any more.
  virtual void submit(const StepInput& input) = 0;
  /// Gives the late part of the step that was submitted last to every rank. If the step has one
  /// (has_late()), this comes before the next submit() and the step's wait() (order.late).
  virtual void complete(const StepInput& late) = 0;
  /// The oldest step's output, valid until the next submit(). Throws EngineDead or its error.
  virtual const StepOutput& wait() = 0;
};

/// Loads a model on all ranks: rank 0 in this process, each other rank in a process of its own.
/// Stores in `setup` what resolve_setup() returned. Throws the error that made a rank fail.
std::unique_ptr<Executor> start_ranks(const std::string& model, const EngineConfig& config,
                                      EngineSetup& setup);

/// The main function of a worker process, `rank` of config.tensor_parallel_size: loads its shard
/// and runs steps until rank 0 ends. Its errors are reported to rank 0 only. The descriptors are
/// those that WorkerProcesses passed to it. Returns the exit status.
int run_worker(const std::string& model, EngineConfig config, int rank, int memory_fd,
               int parent_fd);

}  // namespace nanovllm
