#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "nanovllm/model/weights.h"
#include "nanovllm/ops/backend.h"
#include "nanovllm/ops/batch.h"

namespace nanovllm {

/// Every intermediate result of the forward pass, allocated once for the largest step. The backend
/// must outlive it.
struct Activations {
  Activations(Backend& backend, const ModelConfig& config, DType dtype, int64_t max_tokens,
              int64_t max_rows);
  /// What they take.
  static size_t bytes(const ModelConfig& config, DType dtype, int64_t max_tokens, int64_t max_rows);

  // [max_tokens, ...] in the model's dtype.
  Tensor residual;  ///< [max_tokens, hidden_size] the sum so far
  Tensor hidden;    ///< [max_tokens, hidden_size] after a norm, or what is to be added
  Tensor qkv;       ///< [max_tokens, q_size + 2 * kv_size]; shares its memory with gate_up
  Tensor gate_up;   ///< [max_tokens, 2 * intermediate_size]
  Tensor attn;      ///< [max_tokens, q_size]; shares its memory with act
  Tensor act;       ///< [max_tokens, intermediate_size]

  // The rows whose logits are wanted.
  Tensor row_residual, row_hidden;  ///< [max_rows, hidden_size] model dtype
  Tensor logits;                    ///< [max_rows, vocab_size] float32

  std::vector<Buffer> buffers;
};

/// One step through all layers: stores the new tokens' keys and values in `kv`. Returns the last
/// layer's output [R, hidden_size] of `rows` [R] (int32, in the backend's memory; R at most
/// max_rows, or 0), of which alone the end of the last layer is computed then; without `rows` of
/// all tokens. Needs batch.num_tokens() at most max_tokens.
Tensor forward(Backend& backend, const Model& model, const KvCache& kv, const Batch& batch,
               const std::optional<Tensor>& rows, Activations& activations);

/// Logits [R, vocab_size] float32 of rows of forward()'s output [R, hidden_size], a view into
/// activations.logits. May be called several times after one forward; R at most max_rows.
Tensor compute_logits(Backend& backend, const Model& model, Tensor output,
                      Activations& activations);

/// Draws batch.samples [R] from forward()'s output [R, hidden_size]; the logits are in the first R
/// rows of activations.logits then, if the step has them read.
void draw_tokens(Backend& backend, const Model& model, Tensor output, const Batch& batch,
                 Activations& activations);

}  // namespace nanovllm
