#pragma once

#include <string>

#include "nanovllm/base/config.h"
#include "nanovllm/model/model_config.h"
#include "nanovllm/runtime/kv_size.h"

namespace nanovllm {

/// What a checkpoint folder and the options come to on this machine, before any weight is read.
struct EngineSetup {
  EngineConfig config;  ///< as given, with what is chosen at start filled in
  ModelConfig model;
  DType dtype = DType::kF32;
  KvSize kv;
  size_t weight_bytes = 0;
};

/// Throws UserError for options out of range, for a folder that is no supported checkpoint, and
/// where the model does not fit this machine.
EngineSetup resolve_setup(const std::string& model, const EngineConfig& config);

/// The device, instruction set and threads that the engine would use, in one line.
std::string describe_backend(const EngineConfig& config);

}  // namespace nanovllm
