#include "nanovllm/model/forward.h"

#include <algorithm>
#include <cmath>

#include "nanovllm/base/check.h"
#include "nanovllm/base/to_size.h"

namespace nanovllm {

Activations::Activations(Backend* backend, const ModelSpec& spec, DType dtype, int64_t max_tokens,
                         int64_t max_rows) {
  const auto allocate = [&](int64_t n, int64_t k, DType type) {
    Tensor t(nullptr, type, n, k);
    bytes += t.bytes();
    if (backend == nullptr) return t;
    buffers.push_back(backend->allocate(t.bytes()));
    t.data = buffers.back().get();
    return t;
  };
  const int64_t hidden_size = spec.hidden_size;
  int64_t wide_size = 0, narrow_size = 0;
  bool has_branch = false, has_whole_norms = false;
  for (const auto& [attention, mlp, norms] : spec.layers) {
    const int64_t top_k = std::max<int64_t>(mlp.experts_per_token, 1);
    const int64_t of_expert = mlp.num_experts > 0 ? hidden_size : 0;  // ExpertArgs::out
    wide_size =
        std::max({wide_size, attention.qkv_size(), top_k * std::max(2 * mlp.size, of_expert)});
    narrow_size = std::max({narrow_size, attention.q_size(), top_k * mlp.size});
    has_branch |= norms.after_attention != nullptr || norms.after_mlp != nullptr;
    has_whole_norms |= attention.qk_norm == QkNorm::kWhole;
  }
  residual = allocate(max_tokens, hidden_size, dtype);
  hidden = allocate(max_tokens, hidden_size, dtype);
  if (has_branch) branch = allocate(max_tokens, hidden_size, dtype);
  wide = allocate(max_tokens, wide_size, dtype).data;
  narrow = allocate(max_tokens, narrow_size, dtype).data;
  if (has_whole_norms) squares = allocate(max_tokens, 4, DType::kF32);
  if (const MlpSpec experts = spec.experts(); experts.num_experts > 0) {
    const int64_t num_entries = max_tokens * experts.experts_per_token;
    routing = {.logits = allocate(max_tokens, experts.num_experts, DType::kF32),
               .weights = allocate(max_tokens, experts.experts_per_token, DType::kF32),
               .entries = allocate(max_tokens, experts.experts_per_token, DType::kI32),
               .tokens = allocate(num_entries, 1, DType::kI32),
               .starts = allocate(experts.num_experts + 1, 1, DType::kI32),
               .scratch = allocate(num_entries + 4 * experts.num_experts + 1, 1, DType::kI32)};
  }
  row_residual = allocate(max_rows, hidden_size, dtype);
  row_hidden = allocate(max_rows, hidden_size, dtype);
  logits = allocate(max_rows, spec.vocab_size, DType::kF32);
}

namespace {

/// A layer in one step.
class LayerPass {
 public:
  LayerPass(Backend& backend, const Model& model, const KvCache& kv, const Step& step,
            const Activations& activations, size_t index)
      : backend_(backend),
        model_(model),
        kv_(kv),
        step_(step),
        a_(activations),
        spec_(model.spec.layers[index]),
        layer_(model.layers[index]),
        qkv_{layer_.before_attention, *layer_.qkv, layer_.qkv_bias} {
    const AttentionSpec& spec = spec_.attention;
    rope_ = {.qkv = {a_.wide, model.dtype, step.num_tokens(), spec.qkv_size()},
             .q_norm = spec.qk_norm == QkNorm::kHead ? layer_.q_norm : Tensor(),
             .k_norm = spec.qk_norm == QkNorm::kHead ? layer_.k_norm : Tensor(),
             .cos = model.ropes[spec.rope].cos,
             .sin = model.ropes[spec.rope].sin,
             .num_heads = spec.num_heads,
             .eps = model.spec.rms_norm_eps,
             .layer = static_cast<int64_t>(index)};
    attention_ = {.out = {a_.narrow, model.dtype, step.num_tokens(), spec.q_size()},
                  .qkv = rope_.qkv,
                  .num_heads = spec.num_heads,
                  .scale = 1 / std::sqrt(static_cast<float>(spec.head_dim)),
                  .layer = rope_.layer};
  }

  /// Computes the attention and adds its output to the residual. `next` is the norm after that.
  void attention_block(Residual& residual, const Norm& next) {
    if (is_one_stage() && !layer_.after_attention)
      return backend_.attention_block(residual, qkv_, rope_, attention_, kv_, step_, *layer_.o,
                                      next);
    add(residual, attend(residual), *layer_.o, layer_.after_attention, next);
  }

  /// Computes the attention and returns its output [T, q_size].
  Tensor attend(Residual& residual) {
    if (is_one_stage()) {
      backend_.qkv_attention(residual, qkv_, rope_, attention_, kv_, step_);
    } else {
      project(residual);
      backend_.rope_attention(rope_, attention_, kv_, step_);
    }
    return attention_.out;
  }

  /// Only stores the keys and values.
  void store(Residual& residual) {
    project(residual);
    backend_.rope_and_store(rope_, kv_, step_);
  }

  /// Computes the MLP: dense, or a mixture of experts. `next` is the norm after it.
  void feed_forward(Residual& residual, const Norm& next) {
    const MlpSpec& spec = spec_.mlp;
    const DType dtype = model_.dtype;
    const int64_t num_tokens = residual.num_tokens();
    if (layer_.router == nullptr) {
      const Tensor act(a_.narrow, dtype, num_tokens, spec.size);
      const Tensor gate_up(a_.wide, dtype, num_tokens, 2 * spec.size);
      if (layer_.before_mlp) {
        backend_.norm_swiglu(act, residual, layer_.before_mlp, *layer_.gate_up, gate_up);
      } else {
        backend_.matmul(gate_up, backend_.finish(residual), *layer_.gate_up);
        backend_.silu_mul(act, gate_up);
      }
      return add(residual, act, *layer_.down, layer_.after_mlp, next);
    }
    check(layer_.before_mlp && !layer_.after_mlp, "experts have a norm before them");
    const Routing& all = a_.routing;
    const int64_t top_k = spec.experts_per_token, num_entries = num_tokens * top_k;
    backend_.norm_experts(residual, layer_.before_mlp,
                          {.router = *layer_.router,
                           .gate_up = *layer_.gate_up,
                           .down = *layer_.down,
                           .normalize = spec.normalize,
                           .routing = {.logits = all.logits.rows(0, num_tokens),
                                       .weights = all.weights.rows(0, num_tokens),
                                       .entries = all.entries.rows(0, num_tokens),
                                       .tokens = all.tokens.rows(0, num_entries),
                                       .starts = all.starts,
                                       .scratch = all.scratch},
                           .wide = {a_.wide, dtype, num_entries, 2 * spec.size},
                           .narrow = {a_.narrow, dtype, num_entries, spec.size},
                           .out = {a_.wide, dtype, num_entries, model_.spec.hidden_size}});
  }

  /// residual += after(x w^T). `next` is the norm of the residual that comes next.
  void add(Residual& residual, const Tensor& x, const Weight& w, const Norm& after,
           const Norm& next) {
    if (!after) return backend_.add_matmul(residual, x, w, next);
    const Tensor branch = a_.branch.rows(0, residual.num_tokens());
    backend_.matmul(branch, x, w);
    backend_.all_reduce(branch);
    backend_.rms_norm(branch, branch, after);
    backend_.add(residual, branch);
  }

 private:
  /// Whether norm, projection and attention are a stage of the backend.
  bool is_one_stage() const {
    return layer_.before_attention && spec_.attention.qk_norm != QkNorm::kWhole;
  }

  /// Computes q, k and v.
  void project(Residual& residual) {
    if (qkv_.norm) backend_.norm_matmul(rope_.qkv, residual, qkv_.norm, qkv_.w, qkv_.bias);
    else backend_.matmul(rope_.qkv, backend_.finish(residual), qkv_.w, qkv_.bias);
    if (spec_.attention.qk_norm == QkNorm::kWhole)
      backend_.norm_whole(rope_.qkv,
                          {.q_weight = layer_.q_norm,
                           .k_weight = layer_.k_norm,
                           .k_counted = layer_.k_counted,
                           .q_columns = model_.whole_attention.q_size(),
                           .k_columns = model_.whole_attention.kv_size(),
                           .eps = model_.spec.rms_norm_eps},
                          a_.squares.rows(0, residual.num_tokens()));
  }

  Backend& backend_;
  const Model& model_;
  const KvCache& kv_;
  const Step& step_;
  const Activations& a_;
  const LayerSpec& spec_;
  const Layer& layer_;
  QkvArgs qkv_;
  RopeStoreArgs rope_;
  AttentionArgs attention_;
};

}  // namespace

std::optional<Residual> forward(Backend& backend, const Model& model, const KvCache& kv,
                                const Step& step, const std::optional<Tensor>& rows,
                                Activations& activations, int64_t num_layers) {
  const int64_t num_tokens = step.num_tokens();
  const auto count = to_size(std::min(num_layers, model.spec.num_layers()));
  check(num_tokens <= activations.residual.shape[0], "a step of {} tokens in activations for {}",
        num_tokens, activations.residual.shape[0]);
  Residual residual(activations.residual.rows(0, num_tokens),
                    activations.hidden.rows(0, num_tokens));
  backend.embed(residual.whole(), *model.embed, step.input_ids);
  for (size_t i = 0; i < count; ++i) {
    const Layer& layer = model.layers[i];
    LayerPass pass(backend, model, kv, step, activations, i);
    const bool is_last = i + 1 == count;
    if (is_last && rows) {
      // After the attention, no token depends on another one, so the rest is computed only for
      // `rows`. If there are none, the attention itself is not needed either.
      if (rows->shape[0] == 0) {
        pass.store(residual);
        return {};
      }
      const Tensor attn = pass.attend(residual);
      // The attention has read q, k and v, so their memory is free.
      const Tensor some(activations.wide, attn.dtype, rows->shape[0], attn.shape[1]);
      backend.gather_rows(some, attn, *rows);
      residual = gather_rows(backend, residual, *rows, activations);
      pass.add(residual, some, *layer.o, layer.after_attention, layer.before_mlp);
    } else {
      pass.attention_block(residual, layer.before_mlp);
    }
    pass.feed_forward(residual, is_last ? Norm() : model.layers[i + 1].before_attention);
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
