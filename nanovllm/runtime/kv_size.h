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

/// Sizes a cache of `kv_dtype`: the options' blocks or bytes where given, else the lesser of
/// `bytes` and what max_num_seqs sequences of max_model_len tokens need. `bytes` are also for the
/// rotary tables and block tables, which grow with max_model_len; the options' are the cache's
/// alone. Throws UserError with the
/// numbers and the option to change where max_model_len is more than the model's or the cache's.
/// Of several ranks all call it, each with its own part of the model and its own bytes: the one
/// that holds the fewest blocks decides.
KvSize size_kv_cache(const EngineConfig& config, const ModelConfig& model, DType kv_dtype,
                     size_t bytes, Communicator* ranks = nullptr);

/// What a cache may take by default of memory of which `left` bytes are free after the weights, on
/// the CPU: 4 GiB, but at most half.
size_t cpu_kv_bytes(size_t left);

/// The same on a GPU: gpu_memory_utilization of it, less what others use now and what is still to
/// come, `to_come` bytes; 0 where that is nothing.
size_t gpu_kv_bytes(const Memory& now, double utilization, size_t to_come);

}  // namespace nanovllm
