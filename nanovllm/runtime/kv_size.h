#pragma once

#include <cstddef>
#include <cstdint>

#include "nanovllm/base/config.h"
#include "nanovllm/model/model_config.h"
#include "nanovllm/ops/backend.h"
#include "nanovllm/ops/communicator.h"

namespace nanovllm {

/// How large the KV cache becomes and the longest sequence it allows.
struct KvSize {
  int64_t num_blocks = 0;
  int64_t max_model_len = 0;
};

/// Sizes a cache of `kv_dtype`: the blocks or bytes of the options where given, else the smaller of
/// `bytes` and what max_num_seqs sequences of max_model_len tokens need. `bytes` also pay for the
/// rotary tables and block tables, which grow with max_model_len; the bytes of the options are for
/// the cache alone. Throws UserError with the numbers and the option to change where max_model_len
/// is more than the model or the cache allows. With several ranks all of them call it, each with
/// its own shard and its own bytes, and the smallest number of blocks counts for all.
KvSize size_kv_cache(const EngineConfig& config, const ModelConfig& model, DType kv_dtype,
                     size_t bytes, Communicator* ranks = nullptr);

/// The default size of the cache on the CPU, where `left` bytes are free after the weights: 4 GiB,
/// but at most half of them.
size_t cpu_kv_bytes(size_t left);

/// The same on a GPU: gpu_memory_utilization of its memory, less what is in use now and the
/// `to_come` bytes that this process will allocate for other things; at least 0.
size_t gpu_kv_bytes(const Memory& now, double utilization, size_t to_come);

}  // namespace nanovllm
