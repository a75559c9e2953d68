#include "nanovllm/engine/setup.h"

#include <algorithm>

#include "nanovllm/base/check.h"
#include "nanovllm/base/logging.h"
#include "nanovllm/ops/cuda_library.h"
#include "nanovllm/runtime/model_runner.h"

namespace nanovllm {

namespace {

double gib(size_t bytes) { return static_cast<double>(bytes) / (1 << 30); }

// Larger steps do not compute faster on a CPU, and every running answer waits for one.
constexpr int64_t kCpuBatchedTokens = 2048, kCudaBatchedTokens = 16384;
// cuBLASLt's workspace, graphs, the sampler's memory, what the driver keeps.
constexpr size_t kCudaReserve = size_t{512} << 20;

}  // namespace

std::unique_ptr<Backend> make_backend(EngineConfig& config) {
  config.validate();
  if (config.device == "cuda") return make_cuda_backend();
  if (config.device == "auto" && has_cuda_driver()) {
    try {
      std::unique_ptr<Backend> backend = make_cuda_backend();
      config.device = "cuda";
      return backend;
    } catch (const UserError& error) {
      log().warn("the CPU computes: {}", error.what());
    }
  }
  config.device = "cpu";
  return make_cpu_backend(config.threads);
}

EngineSetup resolve_setup(const std::string& model, const EngineConfig& given,
                          const Backend& backend) {
  given.validate();
  require(given.tensor_parallel_size == 1,
          "tensor_parallel_size is {}; this build runs one rank: use 1",
          given.tensor_parallel_size);
  EngineSetup setup;
  EngineConfig& config = setup.config = given;
  const bool cuda = config.device == "cuda";
  if (config.max_num_batched_tokens == 0)
    config.max_num_batched_tokens = cuda ? kCudaBatchedTokens : kCpuBatchedTokens;
  if (config.max_num_batched_tokens < config.max_num_seqs) {
    log().info("max_num_seqs lowered from {} to max_num_batched_tokens, {}", config.max_num_seqs,
               config.max_num_batched_tokens);
    config.max_num_seqs = config.max_num_batched_tokens;
  }
  setup.model = ModelConfig::load(model);
  setup.dtype = model_dtype(config, setup.model);
  setup.weight_bytes = static_cast<size_t>(setup.model.num_parameters()) * dtype_size(setup.dtype);
  const Memory memory = backend.memory();
  size_t bytes = 0;
  if (cuda) {
    const size_t to_come = setup.weight_bytes + kCudaReserve +
                           Activations::bytes(setup.model, setup.dtype,
                                              config.max_num_batched_tokens, config.max_num_seqs);
    bytes = gpu_kv_bytes(memory, config.gpu_memory_utilization, to_come);
    require(bytes > 0 || config.kv_cache_memory_bytes > 0 || config.num_gpu_blocks_override > 0,
            "no memory is left for the KV cache: of {:.2f} GiB, {:.2f} are free and "
            "--gpu-memory-utilization {} lets this program fill {:.2f}; the model takes {:.2f} "
            "before any cache, {:.2f} too much: raise it, lower --max-num-batched-tokens or "
            "--max-num-seqs, or free memory",
            gib(memory.total), gib(memory.free), config.gpu_memory_utilization,
            std::max(0.0, config.gpu_memory_utilization * gib(memory.total) -
                              gib(memory.total - memory.free)),
            gib(to_come),
            gib(to_come) + gib(memory.total - memory.free) -
                config.gpu_memory_utilization * gib(memory.total));
  } else {
    bytes = cpu_kv_bytes(memory.free - std::min(memory.free, setup.weight_bytes));
  }
  setup.kv = size_kv_cache(config, setup.model, setup.dtype, bytes);
  config.max_model_len = setup.kv.max_model_len;
  // No step holds more sequences than there are blocks, nor more tokens than they take.
  config.max_num_seqs = std::min(config.max_num_seqs, setup.kv.num_blocks);
  config.max_num_batched_tokens =
      std::min(config.max_num_batched_tokens, setup.kv.num_blocks * config.block_size);
  return setup;
}

}  // namespace nanovllm
