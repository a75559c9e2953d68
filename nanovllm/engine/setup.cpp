#include "nanovllm/engine/setup.h"

#include <algorithm>

#include "nanovllm/base/check.h"
#include "nanovllm/base/logging.h"
#include "nanovllm/base/machine.h"
#include "nanovllm/runtime/model_runner.h"

namespace nanovllm {

namespace {

// Larger steps do not compute faster on a CPU, and every running answer waits for one.
constexpr int64_t kCpuBatchedTokens = 2048;

}  // namespace

EngineSetup resolve_setup(const std::string& model, const EngineConfig& given) {
  given.validate();
  require(given.device != "cuda", "device is 'cuda'; this build has no CUDA half: use cpu or auto");
  require(given.tensor_parallel_size == 1,
          "tensor_parallel_size is {}; this build runs one rank: use 1",
          given.tensor_parallel_size);
  EngineSetup setup;
  EngineConfig& config = setup.config = given;
  config.device = "cpu";
  if (config.max_num_batched_tokens == 0) config.max_num_batched_tokens = kCpuBatchedTokens;
  if (config.max_num_batched_tokens < config.max_num_seqs) {
    log().info("max_num_seqs lowered from {} to max_num_batched_tokens, {}", config.max_num_seqs,
               config.max_num_batched_tokens);
    config.max_num_seqs = config.max_num_batched_tokens;
  }
  setup.model = ModelConfig::load(model);
  setup.dtype = model_dtype(config, setup.model);
  setup.weight_bytes = static_cast<size_t>(setup.model.num_parameters()) * dtype_size(setup.dtype);
  const size_t available = available_host_memory();
  setup.kv = size_kv_cache(config, setup.model, setup.dtype,
                           available - std::min(available, setup.weight_bytes));
  config.max_model_len = setup.kv.max_model_len;
  // No step holds more sequences than there are blocks, nor more tokens than they take.
  config.max_num_seqs = std::min(config.max_num_seqs, setup.kv.num_blocks);
  config.max_num_batched_tokens =
      std::min(config.max_num_batched_tokens, setup.kv.num_blocks * config.block_size);
  return setup;
}

std::string describe_backend(const EngineConfig& config) {
  return make_cpu_backend(config.threads)->describe();
}

}  // namespace nanovllm
