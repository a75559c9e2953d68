#include "nanovllm/runtime/kv_size.h"

#include <algorithm>
#include <limits>

#include "nanovllm/base/ceil_div.h"
#include "nanovllm/base/check.h"
#include "nanovllm/base/to_size.h"
#include "nanovllm/ops/kv_cache.h"

namespace nanovllm {

// The index of a token's slot in the cache is an int32 (Batch::slot_mapping).
constexpr int64_t kMaxSlots = std::numeric_limits<int32_t>::max();

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

}  // namespace nanovllm
