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
  Tensor residual;  ///< [max_tokens, hidden_size]
  Tensor hidden;    ///< [max_tokens, hidden_size] the residual's scratch
  Tensor qkv;       ///< [max_tokens, q_size + 2 * kv_size]; shares its memory with gate_up
  Tensor gate_up;   ///< [max_tokens, 2 * intermediate_size]
  Tensor attn;      ///< [max_tokens, q_size]; shares its memory with act
  Tensor act;       ///< [max_tokens, intermediate_size]

  // The rows whose logits are wanted.
  Tensor row_residual, row_hidden;  ///< [max_rows, hidden_size] model dtype
  Tensor logits;                    ///< [max_rows, vocab_size] float32

  std::vector<Buffer> buffers;
};

/// One step through all layers: stores the new tokens' keys and values in `kv`. Returns the
/// residual behind the last layer: of all tokens, or with `rows` [R] (int32, in the backend's
/// memory; R at most max_rows) of those tokens alone, for which alone the last layer is then
/// computed behind its keys and values. Without any row it returns nothing. Needs
/// batch.num_tokens() at most max_tokens. The residual is valid until the next call.
std::optional<Residual> forward(Backend& backend, const Model& model, const KvCache& kv,
                                const Batch& batch, const std::optional<Tensor>& rows,
                                Activations& activations);

/// The residual of `rows` [R] (as above) in the activations' memory for rows.
Residual gather_rows(Backend& backend, Residual& residual, Tensor rows,
                     const Activations& activations);

/// Logits [R, vocab_size] float32 of forward()'s residual or rows of it, a view into
/// activations.logits; R at most max_rows.
Tensor compute_logits(Backend& backend, const Model& model, Residual& residual,
                      Activations& activations);

/// Draws batch.samples [R] from forward()'s residual of R rows; the logits are in the first R rows
/// of activations.logits then, if the step has them read.
void draw_tokens(Backend& backend, const Model& model, Residual& residual, const Batch& batch,
                 Activations& activations);

}  // namespace nanovllm
