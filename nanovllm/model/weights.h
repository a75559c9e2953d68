#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "nanovllm/checkpoint/checkpoint.h"
#include "nanovllm/model/shard.h"
#include "nanovllm/ops/backend.h"

namespace nanovllm {

/// The weights of one decoder layer. Norms and biases are float32, in the memory of the backend.
struct Layer {
  WeightPtr qkv;      ///< [q_size + 2 * kv_size, hidden_size]: q, k and v stacked
  WeightPtr o;        ///< [hidden_size, q_size]
  WeightPtr gate_up;  ///< [2 * intermediate_size, hidden_size]: gate and up stacked
  WeightPtr down;     ///< [hidden_size, intermediate_size]
  /// [num_experts, hidden_size], or none if the MLP is dense. If there is one, gate_up and down
  /// have such matrices for each expert, with moe_intermediate_size instead of intermediate_size.
  WeightPtr router;
  Tensor qkv_bias;                       ///< [q_size + 2 * kv_size], or none
  Norm input_norm, post_attention_norm;  ///< [hidden_size]
  Tensor q_norm, k_norm;                 ///< [head_dim], or none
};

/// A loaded model, or one rank's shard of it. Its backend must outlive it.
struct Model {
  ModelConfig config;           ///< with the sizes of this rank's shard
  DType dtype = DType::kF32;    ///< of weights and activations
  size_t weight_bytes = 0;      ///< of this rank's parameters, as a GPU keeps them
  std::vector<Buffer> buffers;  ///< memory of the tensors below
  WeightPtr embed, lm_head;     ///< [vocab_size, hidden_size]; the same weight if tied
  Norm norm;                    ///< [hidden_size]
  Tensor rope_cos, rope_sin;    ///< [max_model_len, head_dim / 2] float32
  std::vector<Layer> layers;
};

/// Loads this rank's shard from the safetensors files in `folder` into `model`, and reads no other
/// weights from them. With `dummy` it makes random weights from the config alone (the same in every
/// run) and reads no file. The rotary tables have `max_model_len` positions. Calls `meanwhile` when
/// all memory is there and the tables are complete, but perhaps not yet the values of the weights.
/// The files are not needed afterwards. If one of them is written to during the loading, that is an
/// error. Throws UserError that names the file and the tensor.
void load_model(
    Model& model, const std::string& folder, const ModelConfig& config, DType dtype, bool dummy,
    Backend& backend, int64_t max_model_len, Rank rank = {},
    const std::function<void()>& meanwhile = [] {});

/// Checks that the files in `folder` contain exactly the weights that `config` requires, as
/// load_model() does, but reads only their headers.
CheckpointSize check_weights(const std::string& folder, const ModelConfig& config);

}  // namespace nanovllm
