#pragma once

#include <memory>
#include <string>

#include "nanovllm/base/config.h"
#include "nanovllm/ops/communicator.h"
#include "nanovllm/runtime/ranks/worker_processes.h"

namespace nanovllm {

/// Starts the other ranks of a model; none for one rank. `config` is make_backend()'s. Throws
/// UserError, for a model that so many ranks cannot run as well.
std::unique_ptr<WorkerProcesses> start_workers(const std::string& model,
                                               const EngineConfig& config);

/// The life of a worker process, `rank` of config.tensor_parallel_size: loads its part and runs
/// steps until rank 0 ends. Its errors go to rank 0 and nowhere else. The descriptors are those
/// that WorkerProcesses passed on. Returns the exit status.
int run_worker(const std::string& model, EngineConfig config, int rank, int memory_fd,
               int parent_fd);

}  // namespace nanovllm
