#pragma once

#include <cstddef>
#include <cstdint>

#include "nanovllm/base/config.h"
#include "nanovllm/model/model_config.h"

namespace nanovllm {

/// How large the KV cache becomes and the longest sequence it allows.
struct KvSize {
  int64_t num_blocks = 0;
  int64_t max_model_len = 0;
};

/// Sizes a cache of `kv_dtype`: the options' blocks or bytes where given, else on the CPU the least
/// of 4 GiB, half of `memory_left`, and what max_num_seqs sequences of max_model_len tokens need.
/// `memory_left`: bytes after the weights. Throws UserError with the numbers and the option to
/// change where max_model_len is more than the model's or the cache's.
KvSize size_kv_cache(const EngineConfig& config, const ModelConfig& model, DType kv_dtype,
                     size_t memory_left);

}  // namespace nanovllm
