#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "nanovllm/model/weights.h"
#include "nanovllm/ops/backend.h"
#include "nanovllm/ops/step.h"

namespace nanovllm {

/// The memory of every intermediate result of the forward pass, allocated once for the largest step
/// (ownership.memory). The backend must outlive it; without one, only `bytes` is computed.
struct Activations {
  Activations(Backend* backend, const ModelSpec& spec, DType dtype, int64_t max_tokens,
              int64_t max_rows);

  // [max_tokens, ...] in the model's dtype.
  Tensor residual;  ///< [max_tokens, hidden_size]
  Tensor hidden;    ///< [max_tokens, hidden_size] scratch of the residual
  /// [max_tokens, hidden_size] the output of attention or MLP before its norm; or none.
  Tensor branch;
  /// Two buffers that attention and MLP share. For each token `wide` has q, k and v, then gate and
  /// up; `narrow` has the output of the attention, then that of SwiGLU.
  void *wide = nullptr, *narrow = nullptr;
  /// [max_tokens, 4] float32: scratch of Backend::norm_whole(); or none.
  Tensor squares;
  /// How tokens are divided among experts; empty if the model has none.
  Routing routing;

  // For the rows whose logits are needed: norm_matmul() and norm_sample() write them.
  Tensor row_residual, row_hidden;  ///< [max_rows, hidden_size] model dtype
  Tensor logits;                    ///< [max_rows, vocab_size] float32

  std::vector<Buffer> buffers;
  size_t bytes = 0;  ///< of all buffers
};

/// Computes one step through all layers, and stores the keys and values of the new tokens in `kv`.
/// Returns the residual after the last layer. Without `rows` it is the residual of all tokens. With
/// `rows` [R] (int32, in the backend's memory, R at most max_rows) it is the residual of those
/// tokens, and the last layer after its attention is computed only for them; with R = 0 the last
/// layer only stores its keys and values, and nothing is returned. The residual is valid until the
/// next call. With `num_layers` only the first layers are computed.
std::optional<Residual> forward(Backend& backend, const Model& model, const KvCache& kv,
                                const Step& step, const std::optional<Tensor>& rows,
                                Activations& activations, int64_t num_layers = INT64_MAX);

/// Copies the residual of the tokens `rows` [R] (see forward()) to activations.row_residual.
Residual gather_rows(Backend& backend, Residual& residual, Tensor rows,
                     const Activations& activations);

}  // namespace nanovllm
