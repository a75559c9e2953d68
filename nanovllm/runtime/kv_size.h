#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "nanovllm/base/config.h"
#include "nanovllm/model/model_spec.h"
#include "nanovllm/ops/communicator.h"

namespace nanovllm {

/// The size of the KV cache, and the longest sequence that it allows.
struct KvSize {
  int64_t num_blocks = 0;
  int64_t max_model_len = 0;
};

/// Computes the size of a cache of `kv_dtype`: the blocks or bytes of the options if they are
/// given, otherwise the smaller of `bytes` and what max_num_seqs sequences of max_model_len tokens
/// need. `bytes` include the tables and copies of keys that grow with max_model_len; the bytes of
/// the options are only for the cache. If max_model_len is more than the model or the
/// cache allows, throws UserError with the numbers, the option to change and the text `where`. With
/// several ranks all of them call it, each with its own shard and bytes, and all use the smallest
/// number of blocks.
KvSize size_kv_cache(const EngineConfig& config, const ModelSpec& model, DType kv_dtype,
                     size_t bytes, Communicator* ranks = nullptr, const std::string& where = "");

/// The default size of the cache on the CPU, where `left` bytes are free after the weights: 4 GiB,
/// but at most half of them.
size_t cpu_kv_bytes(size_t left);

}  // namespace nanovllm
