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
  // The attention's buffers are free when the MLP's fill, so each pair is one.
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

Tensor forward(Backend& backend, const Model& model, const KvCache& kv, const Batch& batch,
               const std::optional<Tensor>& rows, Activations& activations) {
  const ModelConfig& config = model.config;
  const int64_t num_tokens = batch.num_tokens();
  check(num_tokens <= activations.residual.shape[0], "a batch of {} tokens in activations for {}",
        num_tokens, activations.residual.shape[0]);
  const auto used = [&](const Tensor& t) { return t.rows(0, num_tokens); };
  const Tensor qkv = used(activations.qkv);
  Tensor residual = used(activations.residual), hidden = used(activations.hidden),
         attn = used(activations.attn), gate_up = used(activations.gate_up),
         act = used(activations.act);

  const float eps = config.rms_norm_eps;
  backend.embed(residual, *model.embed, batch.input_ids);
  for (int64_t i = 0; i < config.num_layers; ++i) {
    const Layer& layer = model.layers[static_cast<size_t>(i)];
    const Norm norm = {layer.input_norm, eps};
    const RopeStoreArgs rope = {.qkv = qkv,
                                .q_norm = layer.q_norm,
                                .k_norm = layer.k_norm,
                                .cos = model.rope_cos,
                                .sin = model.rope_sin,
                                .num_heads = config.num_heads,
                                .eps = eps,
                                .layer = i};
    const bool is_last = i + 1 == config.num_layers, is_end = rows && is_last;
    if (is_end && rows->shape[0] == 0) {
      backend.norm_matmul(qkv, residual, norm, *layer.qkv, layer.qkv_bias, hidden);
      backend.rope_and_store(rope, kv, batch);
      return {};
    }
    backend.qkv_attention(
        {.x = residual, .norm = norm, .w = *layer.qkv, .bias = layer.qkv_bias, .hidden = hidden},
        rope,
        {.out = attn,
         .qkv = qkv,
         .num_heads = config.num_heads,
         .scale = 1 / std::sqrt(static_cast<float>(config.head_dim)),
         .layer = i},
        kv, batch);
    if (is_end) {
      // What follows is each token's own, so the others have none. q, k and v are of no more use,
      // nor is what the attention gave: gate_up and act take their places, as ever.
      const int64_t num_rows = rows->shape[0];
      check(num_rows <= activations.row_residual.shape[0], "{} rows in activations for {}",
            num_rows, activations.row_residual.shape[0]);
      const Tensor some(qkv.data, attn.dtype, num_rows, attn.shape[1]);
      backend.gather_rows(some, attn, *rows);
      attn = some;
      backend.gather_rows(activations.row_residual.rows(0, num_rows), residual, *rows);
      residual = activations.row_residual.rows(0, num_rows);
      hidden = activations.row_hidden.rows(0, num_rows);
      gate_up = activations.gate_up.rows(0, num_rows);
      act = activations.act.rows(0, num_rows);
    }
    backend.add_matmul(residual, attn, *layer.o, hidden, layer.post_attention_norm);
    backend.norm_swiglu(act, residual, {layer.post_attention_norm, eps}, *layer.gate_up, hidden,
                        gate_up);
    backend.add_matmul(residual, act, *layer.down, hidden,
                       is_last ? Tensor() : model.layers[static_cast<size_t>(i) + 1].input_norm);
  }
  return residual;
}

namespace {

/// Where the logits of this many rows go.
Tensor logits_of(const Activations& activations, int64_t num_rows) {
  check(num_rows <= activations.logits.shape[0], "{} rows of logits in activations for {}",
        num_rows, activations.logits.shape[0]);
  return activations.logits.rows(0, num_rows);
}

}  // namespace

Tensor compute_logits(Backend& backend, const Model& model, Tensor output,
                      Activations& activations) {
  const Tensor logits = logits_of(activations, output.shape[0]);
  backend.norm_matmul(logits, output, {model.norm, model.config.rms_norm_eps}, *model.lm_head, {},
                      activations.row_hidden.rows(0, output.shape[0]));
  return logits;
}

void draw_tokens(Backend& backend, const Model& model, Tensor output, const Batch& batch,
                 Activations& activations) {
  backend.norm_sample(logits_of(activations, output.shape[0]), output,
                      {model.norm, model.config.rms_norm_eps}, *model.lm_head,
                      activations.row_hidden.rows(0, output.shape[0]), batch);
}

}  // namespace nanovllm
