#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "nanovllm/model/shard.h"
#include "nanovllm/ops/backend.h"

namespace nanovllm {

/// One decoder layer; norms and bias are float32 in the backend's memory.
struct Layer {
  WeightPtr qkv;                         ///< [q_size + 2 * kv_size, hidden_size], q then k then v
  WeightPtr o;                           ///< [hidden_size, q_size]
  WeightPtr gate_up;                     ///< [2 * intermediate_size, hidden_size], gate then up
  WeightPtr down;                        ///< [hidden_size, intermediate_size]
  Tensor qkv_bias;                       ///< [q_size + 2 * kv_size], or none
  Norm input_norm, post_attention_norm;  ///< [hidden_size]
  Tensor q_norm, k_norm;                 ///< [head_dim], or none
};

/// A loaded model, or a rank's part of one. Its backend must outlive it.
struct Model {
  ModelConfig config;           ///< with the rank's own sizes
  DType dtype = DType::kF32;    ///< of weights and activations
  size_t weight_bytes = 0;      ///< of the rank's parameters in `dtype`
  std::vector<Buffer> buffers;  ///< memory of the tensors below
  WeightPtr embed, lm_head;     ///< [vocab_size, hidden_size]; one and the same where tied
  Norm norm;                    ///< [hidden_size]
  Tensor rope_cos, rope_sin;    ///< [max_model_len, head_dim / 2] float32
  std::vector<Layer> layers;
};

/// Loads a rank's part of the safetensors of `folder`, reading nothing else of them; with `dummy`
/// makes random weights from the config alone (the same each time; no file is read).
/// `max_model_len` is the number of positions in the rotary tables. No file is needed afterwards;
/// one that is written to meanwhile is an error. Throws UserError that names file and tensor.
std::unique_ptr<Model> load_model(const std::string& folder, const ModelConfig& config, DType dtype,
                                  bool dummy, Backend& backend, int64_t max_model_len,
                                  Rank rank = {});

}  // namespace nanovllm
