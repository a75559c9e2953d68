#pragma once

#include <string>

#include "nanovllm/base/config.h"

namespace nanovllm {

/// The main function of a worker process, `rank` of config.tensor_parallel_size: loads its shard
/// and runs steps until rank 0 ends. Its errors are reported to rank 0 only. The descriptors are
/// those that WorkerProcesses passed to it. Returns the exit status.
int run_worker(const std::string& model, EngineConfig config, int rank, int memory_fd,
               int parent_fd);

}  // namespace nanovllm
