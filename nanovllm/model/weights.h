#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
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
  WeightPtr gate_up;  ///< [2 * MlpSpec::size, hidden_size]: gate and up stacked
  WeightPtr down;     ///< [hidden_size, MlpSpec::size]
  /// [num_experts, hidden_size]: gate_up and down have matrices for each expert. None: dense.
  WeightPtr router;
  Tensor qkv_bias;  ///< [q_size + 2 * kv_size], or none
  /// [hidden_size], or none (LayerSpec::norms).
  Norm before_attention, after_attention, before_mlp, after_mlp;
  /// QkNorm::kHead: [head_dim]; kWhole: this rank's part of [q_size] and [kv_size]; or none.
  Tensor q_norm, k_norm;
  /// With kWhole: which columns of k this rank counts [kv_size], 1 or 0; or none: all. A KV head
  /// that several ranks have is counted once.
  Tensor k_counted;
};

/// Cosines and sines [max_model_len, head_dim / 2] float32.
struct Rope {
  Tensor cos, sin;
};

/// A loaded model, or one rank's shard of it. Its backend must outlive it.
struct Model {
  ModelSpec spec;                 ///< with the sizes of this rank's shard
  AttentionSpec whole_attention;  ///< with the sizes of all ranks together
  DType dtype = DType::kF32;      ///< the dtype of weights and activations
  std::vector<Buffer> buffers;    ///< the memory of all tensors
  WeightPtr embed, lm_head;       ///< [vocab_size, hidden_size]; the same weight if tied
  Norm norm;                      ///< [hidden_size]
  std::vector<Rope> ropes;        ///< one for each of ModelSpec::ropes
  std::vector<Layer> layers;
};

/// Loads this rank's shard from the safetensors files in `folder` into `model`, and reads no other
/// weights from them. With `dummy` it makes random weights from the spec alone (the same in every
/// run) and reads no file. The rotary tables have `max_model_len` positions. Calls `meanwhile` when
/// all memory is allocated and the tables are complete, while the weights may still be copied.
/// Throws UserError that names file and tensor, also if a file is written to meanwhile.
void load_model(
    Model& model, const std::string& folder, const ModelSpec& spec, DType dtype, bool dummy,
    Backend& backend, int64_t max_model_len, Rank rank = {},
    const std::function<void()>& meanwhile = [] {});

/// Checks that the files in `folder` contain exactly the weights that `spec` requires, as
/// load_model() does, but reads only their headers. Throws UserError.
CheckpointSize check_weights(const std::string& folder, const ModelSpec& spec);

}  // namespace nanovllm
