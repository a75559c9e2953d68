#include "nanovllm/model/forward.h"

#include <algorithm>
#include <cmath>

#include "nanovllm/base/check.h"

namespace nanovllm {

namespace {

/// Elements of the two buffers that the stages of a layer share, for each token: what the attention
/// stores there is no longer needed when the MLP writes.
int64_t wide_size(const ModelConfig& c) {
  return std::max({c.qkv_size(), 2 * c.intermediate_size,
                   c.num_experts_per_tok * std::max(2 * c.moe_intermediate_size, c.hidden_size)});
}
int64_t narrow_size(const ModelConfig& c) {
  return std::max(
      {c.q_size(), c.intermediate_size, c.num_experts_per_tok * c.moe_intermediate_size});
}

}  // namespace

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
  void* wide = allocate(max_tokens, wide_size(config), dtype).data;
  void* narrow = allocate(max_tokens, narrow_size(config), dtype).data;
  qkv = Tensor(wide, dtype, max_tokens, config.qkv_size());
  gate_up = Tensor(wide, dtype, max_tokens, 2 * config.intermediate_size);
  attn = Tensor(narrow, dtype, max_tokens, config.q_size());
  act = Tensor(narrow, dtype, max_tokens, config.intermediate_size);
  if (const int64_t top_k = config.num_experts_per_tok; config.num_experts > 0) {
    const int64_t num_entries = max_tokens * top_k;
    expert_gate_up = Tensor(wide, dtype, num_entries, 2 * config.moe_intermediate_size);
    expert_act = Tensor(narrow, dtype, num_entries, config.moe_intermediate_size);
    expert_out = Tensor(wide, dtype, num_entries, hidden_size);
    routing = {.logits = allocate(max_tokens, config.num_experts, DType::kF32),
               .weights = allocate(max_tokens, top_k, DType::kF32),
               .entries = allocate(max_tokens, top_k, DType::kI32),
               .tokens = allocate(num_entries, 1, DType::kI32),
               .starts = allocate(config.num_experts + 1, 1, DType::kI32),
               .scratch = allocate(num_entries + 4 * config.num_experts + 1, 1, DType::kI32)};
  }
  row_residual = allocate(max_rows, hidden_size, dtype);
  row_hidden = allocate(max_rows, hidden_size, dtype);
  logits = allocate(max_rows, config.vocab_size, DType::kF32);
}

size_t Activations::bytes(const ModelConfig& c, DType dtype, int64_t max_tokens, int64_t max_rows) {
  const int64_t per_token = 2 * c.hidden_size + wide_size(c) + narrow_size(c);
  const int64_t routing =
      c.num_experts == 0
          ? 0
          : max_tokens * (c.num_experts + 4 * c.num_experts_per_tok) + 5 * c.num_experts + 2;
  return static_cast<size_t>(max_tokens * per_token + max_rows * 2 * c.hidden_size) *
             dtype_size(dtype) +
         static_cast<size_t>(max_rows * c.vocab_size + routing) * sizeof(float);
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
                         .layer = layer_index,
                         .next = layer.o.get()},
                        kv, batch);
}

/// The MLP of a layer: dense, or a mixture of experts. `next` is the norm after it.
void feed_forward(Backend& backend, const ModelConfig& config, const Layer& layer,
                  Residual& residual, const Activations& a, const Norm& next) {
  const int64_t num_tokens = residual.num_tokens();
  if (layer.router == nullptr) {
    const Tensor act = a.act.rows(0, num_tokens);
    backend.norm_swiglu(act, residual, layer.post_attention_norm, *layer.gate_up,
                        a.gate_up.rows(0, num_tokens));
    return backend.add_matmul(residual, act, *layer.down, next);
  }
  const int64_t num_entries = num_tokens * config.num_experts_per_tok;
  backend.norm_experts(residual, layer.post_attention_norm,
                       {.router = *layer.router,
                        .gate_up = *layer.gate_up,
                        .down = *layer.down,
                        .normalize = config.norm_topk_prob,
                        .routing = {.logits = a.routing.logits.rows(0, num_tokens),
                                    .weights = a.routing.weights.rows(0, num_tokens),
                                    .entries = a.routing.entries.rows(0, num_tokens),
                                    .tokens = a.routing.tokens.rows(0, num_entries),
                                    .starts = a.routing.starts,
                                    .scratch = a.routing.scratch},
                        .wide = a.expert_gate_up.rows(0, num_entries),
                        .narrow = a.expert_act.rows(0, num_entries),
                        .out = a.expert_out.rows(0, num_entries)});
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
    feed_forward(backend, model.config, layer, residual, activations,
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
