#include "nanovllm/runtime/setup.h"

#include <algorithm>

#include "nanovllm/base/check.h"
#include "nanovllm/base/system/machine.h"
#include "nanovllm/base/terminal/logging.h"
#include "nanovllm/model/forward.h"
#include "nanovllm/model/shard.h"
#include "nanovllm/ops/cuda_library.h"
#include "nanovllm/ops/kv_cache.h"
#include "nanovllm/runtime/ranks/step_channel.h"

namespace nanovllm {

namespace {

double gib(size_t bytes) { return static_cast<double>(bytes) / (1 << 30); }

// A process on the CPU keeps idle prefixes in at least this much memory.
constexpr size_t kKeptCpuBytes = size_t{128} << 20;
// For cuBLASLt's workspace, graphs, the sampler's memory and the driver.
constexpr size_t kCudaReserve = size_t{512} << 20;
// The index of a token's slot in the cache is an int32 (Step::slot_mapping).
constexpr int64_t kMaxSlots = std::numeric_limits<int32_t>::max();

/// The option's dtype. "auto" means the checkpoint's, but bfloat16 if that is float32.
DType model_dtype(const EngineConfig& config, const ModelSpec& model) {
  if (config.dtype != "auto") return parse_float_dtype(config.dtype);
  return model.dtype == DType::kF32 ? DType::kBF16 : model.dtype;
}

/// Whether an option says how large the KV cache is.
bool sizes_cache(const EngineConfig& config) {
  return config.kv_cache_memory_bytes > 0 || config.num_gpu_blocks_override > 0;
}

/// How much memory the KV cache of a rank may take. `own` is the rank's part of the model.
size_t cache_bytes(const EngineSetup& setup, const ModelSpec& own, const Memory& memory) {
  const EngineConfig& config = setup.config;
  if (config.device != "cuda") {
    // All ranks share the host's memory.
    require(setup.weight_bytes < memory.free || sizes_cache(config),
            "the weights take {:.2f} GiB as {}, and of {:.2f} GiB of memory {:.2f} are free: free "
            "memory, raise its limit (ulimit, container) or use a smaller model",
            gib(setup.weight_bytes), dtype_name(setup.dtype), gib(memory.total), gib(memory.free));
    return cpu_kv_bytes(memory.free - std::min(memory.free, setup.weight_bytes)) /
           to_size(config.tensor_parallel_size);
  }
  const size_t to_come =
      own.weight_bytes(setup.dtype, /*on_gpu=*/true) + kCudaReserve +
      Activations(nullptr, own, setup.dtype, config.max_num_batched_tokens, config.max_num_seqs)
          .bytes;
  const size_t bytes = memory.left(config.gpu_memory_utilization, to_come);
  const double taken = gib(to_come) + gib(memory.total - memory.free);
  require(bytes > 0 || sizes_cache(config),
          "no memory is left for the KV cache: {}; --gpu-memory-utilization {} counts all of "
          "them and lets this program fill {:.2f} more; the model takes {:.2f} before any cache, "
          "{:.2f} too much: raise the utilization, lower --max-num-batched-tokens or "
          "--max-num-seqs, or end other programs",
          holders(memory), config.gpu_memory_utilization,
          gib(memory.left(config.gpu_memory_utilization, 0)), gib(to_come),
          taken - config.gpu_memory_utilization * gib(memory.total));
  return bytes;
}

}  // namespace

std::unique_ptr<Backend> make_backend(EngineConfig& config, int rank) {
  config.validate();
  const Rank which = {rank, static_cast<int>(config.tensor_parallel_size)};
  if (config.device == "cuda") return make_cuda_backend({}, which);
  if (config.device == "auto" && has_cuda_driver()) {
    try {
      std::unique_ptr<Backend> backend = make_cuda_backend({}, which);
      config.device = "cuda";
      return backend;
    } catch (const UserError& error) {
      require(which.world == 1, "{}; use --device cpu to run on the CPU", error.what());
      log().warn("running on the CPU: {}", error.what());
    }
  }
  config.device = "cpu";
  const int64_t threads = config.threads > 0 ? config.threads : num_usable_cpus();
  return make_cpu_backend(std::max<int64_t>(1, threads / which.world));
}

KvSize size_kv_cache(const EngineConfig& config, const ModelSpec& model, DType kv_dtype,
                     size_t bytes, Communicator* ranks, const std::string& where) {
  const int64_t asked_len = config.max_model_len;
  require(asked_len <= model.max_position_embeddings,
          "--max-model-len is {}; the model's max_position_embeddings allow at most {} (a "
          "--rope-scaling of type yarn allows more)",
          asked_len, model.max_position_embeddings);
  require(asked_len == 0 || asked_len >= 2,
          "--max-model-len is {}; it must be at least 2, for a prompt and an answer", asked_len);
  const int64_t wanted_len = asked_len > 0 ? asked_len : model.max_position_embeddings;
  const size_t block_bytes = model.kv_bytes_per_token(kv_dtype) * to_size(config.block_size);
  const int64_t blocks_for_one = ceil_div(wanted_len, config.block_size);
  // The bytes for each block of the longest sequence in what grows with it. On a GPU, prefill
  // attention reads 16-bit copies of one layer's keys if the cache is of e4m3.
  const bool copies = config.device == "cuda" && kv_dtype == DType::kE4M3;
  const AttentionSpec& attention = model.attention();
  const size_t copy_bytes =
      copies ? 2 * to_size(attention.num_kv_heads) * kv_key_bytes(DType::kF16, attention.head_dim)
             : 0;
  const size_t length_bytes =
      (model.rope_bytes_per_position() + copy_bytes) * to_size(config.block_size) +
      to_size(config.max_num_seqs) * sizeof(int32_t);

  if (config.kv_cache_memory_bytes > 0) bytes = to_size(config.kv_cache_memory_bytes);
  KvSize size;
  if (config.num_gpu_blocks_override > 0) {
    size.num_blocks = config.num_gpu_blocks_override;
    require(size.num_blocks <= kMaxSlots / config.block_size,
            "--num-gpu-blocks-override is {}; it must be at most {} with --block-size {}",
            size.num_blocks, kMaxSlots / config.block_size, config.block_size);
  } else {
    size.num_blocks = static_cast<int64_t>(bytes / block_bytes);
    if (config.kv_cache_memory_bytes == 0) {
      // The longest sequence has all blocks, but at most blocks_for_one.
      const auto longest = to_size(blocks_for_one);
      size_t blocks = bytes / (block_bytes + length_bytes);
      if (blocks > longest) blocks = (bytes - longest * length_bytes) / block_bytes;
      size.num_blocks =
          std::min(static_cast<int64_t>(blocks), config.max_num_seqs * blocks_for_one);
    }
    size.num_blocks = std::min(size.num_blocks, kMaxSlots / config.block_size);
  }
  if (ranks != nullptr) size.num_blocks = ranks->smallest(size.num_blocks);
  require(size.num_blocks >= 1,
          "the KV cache may take {} bytes, but one block of {} tokens takes {} bytes: lower "
          "--block-size, raise {} or free memory{}",
          bytes, config.block_size,
          block_bytes + (config.kv_cache_memory_bytes == 0 ? length_bytes : 0),
          config.device == "cuda" && config.kv_cache_memory_bytes == 0 ? "--gpu-memory-utilization"
                                                                       : "--kv-cache-memory-bytes",
          where);
  const int64_t capacity = size.num_blocks * config.block_size;
  require(asked_len <= capacity,
          "--max-model-len is {}; the KV cache holds {} tokens ({} block{} of {}): lower it to {}, "
          "or give more with --kv-cache-memory-bytes {} or --num-gpu-blocks-override {}{}",
          asked_len, capacity, size.num_blocks, size.num_blocks == 1 ? "" : "s", config.block_size,
          capacity, to_size(blocks_for_one) * block_bytes, blocks_for_one, where);
  size.max_model_len = std::min(wanted_len, capacity);
  return size;
}

size_t cpu_kv_bytes(size_t left) { return std::min<size_t>(size_t{4} << 30, left / 2); }

EngineSetup resolve_setup(const std::string& model, const EngineConfig& given, Backend& backend,
                          Communicator* ranks) {
  EngineSetup setup;
  EngineConfig& config = setup.config = given;
  const bool cuda = config.device == "cuda";
  config.choose_batched_tokens();
  if (config.max_num_batched_tokens < config.max_num_seqs) {
    log().info("max_num_seqs lowered from {} to max_num_batched_tokens, {}", config.max_num_seqs,
               config.max_num_batched_tokens);
    config.max_num_seqs = config.max_num_batched_tokens;
  }
  setup.model = load_model_spec(model, config);
  setup.dtype = model_dtype(config, setup.model);
  setup.kv_dtype = config.kv_cache_dtype == "auto" ? setup.dtype : DType::kE4M3;
  setup.weight_bytes = setup.model.weight_bytes(setup.dtype, cuda);
  const auto world = static_cast<int>(config.tensor_parallel_size);
  const ModelSpec own =
      make_shard(setup.model, ranks != nullptr ? ranks->rank() : Rank{0, world}).model;
  if (ranks != nullptr) backend.connect(*ranks, setup.model.vocab_size);
  const Memory memory = backend.memory();
  const std::string where = cuda && !sizes_cache(config) ? "; " + holders(memory) : "";
  const KvSize kv =
      size_kv_cache(config, own, setup.kv_dtype, cache_bytes(setup, own, memory), ranks, where);
  setup.num_blocks = kv.num_blocks;
  // Memory that the user did not give to the cache should not fill up with idle prefixes.
  if (!cuda && !sizes_cache(config))
    setup.num_kept_blocks =
        static_cast<int64_t>(std::max(kKeptCpuBytes, setup.weight_bytes) / to_size(world) /
                             (own.kv_bytes_per_token(setup.kv_dtype) * to_size(config.block_size)));
  config.max_model_len = kv.max_model_len;
  // No step has more sequences than there are blocks, nor more tokens than fit in them.
  config.max_num_seqs = std::min(config.max_num_seqs, kv.num_blocks);
  config.max_num_batched_tokens =
      std::min(config.max_num_batched_tokens, kv.num_blocks * config.block_size);
  // In double, because products of these sizes can overflow. Ranks on the CPU share its memory.
  const double cache_gib = gib(own.kv_bytes_per_token(setup.kv_dtype)) * (cuda ? 1 : world) *
                           static_cast<double>(config.block_size * kv.num_blocks);
  const double tables_gib = gib(setup.table_bytes()) * (cuda ? 1 : world);
  require(
      cache_gib + tables_gib <= gib(memory.total),
      "a KV cache of {} blocks of {} tokens takes {:.2f} GiB, and block tables of {} sequences "
      "{:.2f}, of {:.2f} GiB in total: lower --kv-cache-memory-bytes, --num-gpu-blocks-override "
      "or --max-num-seqs, or raise --block-size",
      kv.num_blocks, config.block_size, cache_gib, config.max_num_seqs, tables_gib,
      gib(memory.total));
  return setup;
}

ChoiceCache choice_cache(const EngineConfig& config) {
  return {config.cache_folder(), kBuildChecksum};
}

}  // namespace nanovllm
