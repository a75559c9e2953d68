#pragma once

#include <limits>
#include <memory>
#include <optional>
#include <string>

#include "nanovllm/base/ceil_div.h"
#include "nanovllm/base/config.h"
#include "nanovllm/base/to_size.h"
#include "nanovllm/families/load.h"
#include "nanovllm/model/weights.h"
#include "nanovllm/ops/backend.h"

namespace nanovllm {

/// How a checkpoint will run with the options on this machine; known before any weight is read.
struct EngineSetup {
  EngineConfig config;  ///< with the automatic values filled in, so no limit is zero
  ModelSpec model;
  DType dtype = DType::kF32;     ///< of weights and activations
  DType kv_dtype = DType::kF32;  ///< of the KV cache
  int64_t num_blocks = 0;        ///< of the KV cache
  /// How many of them are filled, unless more are in use, before the oldest contents are replaced.
  int64_t num_kept_blocks = std::numeric_limits<int64_t>::max();
  /// Snapshots of recurrent states in the prefix cache; none: no layer of the model has a state.
  std::optional<int64_t> num_snapshots;
  size_t weight_bytes = 0;  ///< of all ranks together

  /// Entries of a sequence's block table.
  int64_t max_blocks_per_seq() const { return ceil_div(config.max_model_len, config.block_size); }
  /// Bytes of the block tables of each rank's backend.
  size_t table_bytes() const {
    return to_size(config.max_num_seqs * max_blocks_per_seq()) * sizeof(int32_t);
  }
};

/// The backend of config.device for rank number `rank`. "auto" becomes "cuda" if there is a GPU and
/// the libraries that it needs, otherwise "cpu", with a warning if there is a GPU but a library is
/// missing. Throws UserError if the device cannot be used.
std::unique_ptr<Backend> make_backend(EngineConfig& config, int rank = 0);

/// The size of the KV cache, and the longest sequence that it allows.
struct KvSize {
  int64_t num_blocks = 0;
  int64_t max_model_len = 0;
};

/// Computes the size of a cache of `kv_dtype`: the blocks or bytes of the options if they are
/// given, otherwise the smaller of `bytes` and what max_num_seqs sequences of max_model_len tokens
/// need. `bytes` include the tables and copies of keys that grow with max_model_len; the bytes of
/// the options are only for the cache. If max_model_len is more than the model or the cache allows,
/// throws UserError with the numbers, the option to change and the text `where`. With `ranks`, each
/// calls it with its own shard and bytes, and all use the smallest number of blocks.
KvSize size_kv_cache(const EngineConfig& config, const ModelSpec& model, DType kv_dtype,
                     size_t bytes, Communicator* ranks = nullptr, const std::string& where = "");

/// The default size of the cache on the CPU, where `left` bytes are free after the weights: 4 GiB,
/// but at most half of them.
size_t cpu_kv_bytes(size_t left);

/// Decides how a checkpoint will run, before any weight is read: reads config.json, fills in the
/// automatic values, and computes the size of the KV cache. make_backend() has filled in `config`.
/// Throws UserError if an option is out of range, the folder is not a supported checkpoint, or the
/// model does not fit in the backend's memory. With `ranks`, all ranks call this, and it connects
/// their backends.
EngineSetup resolve_setup(const std::string& model, const EngineConfig& config, Backend& backend,
                          Communicator* ranks = nullptr);

/// Where the choices of kernels are kept.
ChoiceCache choice_cache(const EngineConfig& config);

}  // namespace nanovllm
