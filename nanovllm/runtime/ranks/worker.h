#pragma once

#include <memory>
#include <string>

#include "nanovllm/base/config.h"
#include "nanovllm/runtime/ranks/worker_processes.h"

namespace nanovllm {

/// Starts the processes of the other ranks; returns null if there is only one rank. make_backend()
/// has filled in `config`. Throws UserError, also if the model cannot be divided over that many
/// ranks.
std::unique_ptr<WorkerProcesses> start_workers(const std::string& model,
                                               const EngineConfig& config);

/// The main function of a worker process, `rank` of config.tensor_parallel_size: loads its shard
/// and runs steps until rank 0 ends. Its errors are reported to rank 0 only. The descriptors are
/// those that WorkerProcesses passed to it. Returns the exit status.
int run_worker(const std::string& model, EngineConfig config, int rank, int memory_fd,
               int parent_fd);

}  // namespace nanovllm
