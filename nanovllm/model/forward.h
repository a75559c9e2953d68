#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "nanovllm/model/weights.h"
#include "nanovllm/ops/backend.h"
#include "nanovllm/ops/batch.h"

namespace nanovllm {

/// The memory of every intermediate result of the forward pass, allocated once for the largest step
/// (ownership.memory). The backend must outlive it.
struct Activations {
  Activations(Backend& backend, const ModelConfig& config, DType dtype, int64_t max_tokens,
              int64_t max_rows);
  /// How many bytes they take in total.
  static size_t bytes(const ModelConfig& config, DType dtype, int64_t max_tokens, int64_t max_rows);

  // [max_tokens, ...] in the model's dtype.
  Tensor residual;  ///< [max_tokens, hidden_size]
  Tensor hidden;    ///< [max_tokens, hidden_size] scratch of the residual
  Tensor qkv;       ///< [max_tokens, q_size + 2 * kv_size]; shares its memory with gate_up
  Tensor gate_up;   ///< [max_tokens, 2 * intermediate_size]
  Tensor attn;      ///< [max_tokens, q_size]; shares its memory with act
  Tensor act;       ///< [max_tokens, intermediate_size]
  // The same for experts, empty if the model has none. Each token has num_experts_per_tok rows.
  Tensor expert_gate_up, expert_act, expert_out;
  Routing routing;

  // For the rows whose logits are needed: norm_matmul() and norm_sample() write them.
  Tensor row_residual, row_hidden;  ///< [max_rows, hidden_size] model dtype
  Tensor logits;                    ///< [max_rows, vocab_size] float32

  std::vector<Buffer> buffers;
};

/// Computes one step through all layers, and stores the keys and values of the new tokens in `kv`.
/// Returns the residual after the last layer. Without `rows` it is the residual of all tokens. With
/// `rows` [R] (int32, in the backend's memory, R at most max_rows) it is the residual of those
/// tokens, and the last layer after its attention is computed only for them; with R = 0 the last
/// layer only stores its keys and values, and nothing is returned. batch.num_tokens() must be at
/// most max_tokens. The residual is valid until the next call. With `num_layers` only the first
/// layers are computed.
std::optional<Residual> forward(Backend& backend, const Model& model, const KvCache& kv,
                                const Batch& batch, const std::optional<Tensor>& rows,
                                Activations& activations, int64_t num_layers = INT64_MAX);

/// The residual of `rows` [R] (as above), in activations.row_residual.
Residual gather_rows(Backend& backend, Residual& residual, Tensor rows,
                     const Activations& activations);

}  // namespace nanovllm
