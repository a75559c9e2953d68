#include "nanovllm/model/forward.h"

#include <algorithm>
#include <cmath>

#include "nanovllm/base/check.h"

namespace nanovllm {

Activations::Activations(Backend& backend, const ModelConfig& config, DType dtype,
                         int64_t max_tokens, int64_t max_rows) {
  const auto allocate = [&](int64_t n, int64_t k, DType type) {
    Tensor t(nullptr, type, n, k);
    buffers.push_back(backend.allocate(t.bytes()));
    t.data = buffers.back().get();
    return t;
  };
  const int64_t hidden_size = config.hidden_size;
  residual = allocate(max_tokens, hidden_size, dtype);
  hidden = allocate(max_tokens, hidden_size, dtype);
  // The buffers of the attention are no longer needed when those of the MLP are written, so they
  // share memory.
  const int64_t gate_up_size = 2 * config.intermediate_size;
  void* wide = allocate(max_tokens, std::max(config.qkv_size(), gate_up_size), dtype).data;
  void* narrow =
      allocate(max_tokens, std::max(config.q_size(), config.intermediate_size), dtype).data;
  qkv = Tensor(wide, dtype, max_tokens, config.qkv_size());
  gate_up = Tensor(wide, dtype, max_tokens, gate_up_size);
  attn = Tensor(narrow, dtype, max_tokens, config.q_size());
  act = Tensor(narrow, dtype, max_tokens, config.intermediate_size);
  row_residual = allocate(max_rows, hidden_size, dtype);
  row_hidden = allocate(max_rows, hidden_size, dtype);
  logits = allocate(max_rows, config.vocab_size, DType::kF32);
}

size_t Activations::bytes(const ModelConfig& c, DType dtype, int64_t max_tokens, int64_t max_rows) {
  const int64_t per_token = 2 * c.hidden_size + std::max(c.qkv_size(), 2 * c.intermediate_size) +
                            std::max(c.q_size(), c.intermediate_size);
  return static_cast<size_t>(max_tokens * per_token + max_rows * 2 * c.hidden_size) *
             dtype_size(dtype) +
         static_cast<size_t>(max_rows * c.vocab_size) * sizeof(float);
}

namespace {

/// The attention of one layer: out [T, q_size]. If `out` is empty, it only stores the keys and
/// values.
void attend(Backend& backend, const Model& model, int64_t layer_index, Residual& residual,
            Tensor qkv, const Tensor& out, const KvCache& kv, const Batch& batch) {
  const ModelConfig& config = model.config;
  const Layer& layer = model.layers[static_cast<size_t>(layer_index)];
  const RopeStoreArgs rope = {.qkv = qkv,
                              .q_norm = layer.q_norm,
                              .k_norm = layer.k_norm,
                              .cos = model.rope_cos,
                              .sin = model.rope_sin,
                              .num_heads = config.num_heads,
                              .eps = config.rms_norm_eps,
                              .layer = layer_index};
  if (!out) {
    backend.norm_matmul(qkv, residual, layer.input_norm, *layer.qkv, layer.qkv_bias);
    return backend.rope_and_store(rope, kv, batch);
  }
  backend.qkv_attention(residual, {layer.input_norm, *layer.qkv, layer.qkv_bias}, rope,
                        {.out = out,
                         .qkv = qkv,
                         .num_heads = config.num_heads,
                         .scale = 1 / std::sqrt(static_cast<float>(config.head_dim)),
                         .layer = layer_index},
                        kv, batch);
}

}  // namespace

std::optional<Residual> forward(Backend& backend, const Model& model, const KvCache& kv,
                                const Batch& batch, const std::optional<Tensor>& rows,
                                Activations& activations, int64_t num_layers) {
  const int64_t num_tokens = batch.num_tokens();
  num_layers = std::min(num_layers, model.config.num_layers);
  check(num_tokens <= activations.residual.shape[0], "a batch of {} tokens in activations for {}",
        num_tokens, activations.residual.shape[0]);
  const auto used = [&](const Tensor& t, const Residual& r) { return t.rows(0, r.num_tokens()); };
  Residual residual(activations.residual.rows(0, num_tokens),
                    activations.hidden.rows(0, num_tokens));
  const Tensor qkv = used(activations.qkv, residual);

  backend.embed(residual.whole(), *model.embed, batch.input_ids);
  for (int64_t i = 0; i < num_layers; ++i) {
    const Layer& layer = model.layers[static_cast<size_t>(i)];
    const bool is_last = i + 1 == num_layers;
    const bool has_no_rows = is_last && rows && rows->shape[0] == 0;
    Tensor attn = has_no_rows ? Tensor() : used(activations.attn, residual);
    attend(backend, model, i, residual, qkv, attn, kv, batch);
    if (has_no_rows) return {};
    if (is_last && rows) {
      // After the attention, no token depends on another one, so the rest is computed only for
      // `rows`. The attention has read q, k and v, so their memory is free.
      const Tensor some(qkv.data, attn.dtype, rows->shape[0], attn.shape[1]);
      backend.gather_rows(some, attn, *rows);
      attn = some;
      residual = gather_rows(backend, residual, *rows, activations);
    }
    backend.add_matmul(residual, attn, *layer.o, layer.post_attention_norm);
    const Tensor act = used(activations.act, residual);
    backend.norm_swiglu(act, residual, layer.post_attention_norm, *layer.gate_up,
                        used(activations.gate_up, residual));
    backend.add_matmul(residual, act, *layer.down,
                       is_last ? Norm() : model.layers[static_cast<size_t>(i) + 1].input_norm);
  }
  return residual;
}

Residual gather_rows(Backend& backend, Residual& residual, Tensor rows,
                     const Activations& activations) {
  const int64_t num_rows = rows.shape[0];
  check(num_rows <= activations.row_residual.shape[0], "{} rows in activations for {}", num_rows,
        activations.row_residual.shape[0]);
  Residual some(activations.row_residual.rows(0, num_rows),
                activations.row_hidden.rows(0, num_rows));
  backend.gather_rows(some, residual, rows);
  return some;
}

}  // namespace nanovllm
