#pragma once

#include <memory>
#include <string>

#include "nanovllm/base/config.h"
#include "nanovllm/model/model_config.h"
#include "nanovllm/ops/backend.h"
#include "nanovllm/runtime/kv_size.h"

namespace nanovllm {

/// The sizes and limits that follow from a checkpoint's config, the options and this machine. They
/// are known before any weight is read.
struct EngineSetup {
  EngineConfig config;  ///< with the automatic values filled in, so no limit is zero
  ModelConfig model;
  DType dtype = DType::kF32;  ///< of weights, activations and the KV cache
  int64_t num_blocks = 0;     ///< of the KV cache
  size_t weight_bytes = 0;    ///< of all ranks together

  /// Entries of a sequence's block table.
  int64_t max_blocks_per_seq() const {
    return (config.max_model_len + config.block_size - 1) / config.block_size;
  }
};

/// The backend of config.device for rank number `rank`. "auto" becomes "cuda" where there is a GPU
/// and the libraries that it needs, else "cpu", with a warning where a GPU is there but a library
/// is missing. Throws UserError.
std::unique_ptr<Backend> make_backend(EngineConfig& config, int rank = 0);

/// `config` is the one that make_backend() completed. Throws UserError for options out of range,
/// for a folder that is no supported checkpoint, and where the model does not fit the backend's
/// memory. With `ranks` it connects the backend to the others, all of which call this.
EngineSetup resolve_setup(const std::string& model, const EngineConfig& config, Backend& backend,
                          Communicator* ranks = nullptr);

}  // namespace nanovllm
