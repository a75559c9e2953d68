#include "nanovllm/model/model_spec.h"

#include <algorithm>

#include "nanovllm/ops/kv_cache.h"

namespace nanovllm {

static bool has_experts(const LayerSpec& layer) { return layer.mlp.num_experts > 0; }

MlpSpec ModelSpec::experts() const {
  const auto at = std::ranges::find_if(layers, has_experts);
  return at == layers.end() ? MlpSpec() : at->mlp;
}

int64_t ModelSpec::num_expert_layers() const { return std::ranges::count_if(layers, has_experts); }

int64_t ModelSpec::num_parameters() const {
  int64_t total = (tie_word_embeddings ? 1 : 2) * vocab_size * hidden_size + hidden_size;
  for (const LayerSpec& layer : layers) {
    const AttentionSpec& a = layer.attention;
    const MlpSpec& mlp = layer.mlp;
    total += (a.qkv_size() + a.q_size()) * hidden_size + (a.qkv_bias ? a.qkv_size() : 0);
    if (a.qk_norm == QkNorm::kHead) total += 2 * a.head_dim;
    if (a.qk_norm == QkNorm::kWhole) total += a.q_size() + a.kv_size();
    total += (3 * mlp.size * mlp.num_matrices() + mlp.num_experts) * hidden_size;
    for (const char* norm : {layer.norms.before_attention, layer.norms.after_attention,
                             layer.norms.before_mlp, layer.norms.after_mlp})
      if (norm != nullptr) total += hidden_size;
  }
  return total;
}

size_t ModelSpec::weight_bytes(DType dtype, bool on_gpu) const {
  const auto size = static_cast<double>(dtype_size(dtype));
  auto bytes = size * static_cast<double>(num_parameters());
  const bool keeps =
      quantization && dtype != DType::kF32 && !(on_gpu && quantization->column_unit == 0);
  if (!keeps) return static_cast<size_t>(bytes);
  int64_t most_rows = 0;  // the most rows of an MLP's matrix
  for (size_t i = 0; i < layers.size(); ++i) {
    const AttentionSpec& a = layers[i].attention;
    const int64_t mlp_rows = layers[i].mlp.size * layers[i].mlp.num_matrices();
    most_rows = std::max(most_rows, mlp_rows);
    const auto count = [&](const std::string& module, int64_t rows) {
      if (is_quantized(quantization, fmt::format("model.layers.{}.{}", i, module)))
        bytes -= (size - quantization->bytes_per_value) * static_cast<double>(rows * hidden_size);
    };
    for (const char* module : {"self_attn.q_proj", "self_attn.o_proj"}) count(module, a.q_size());
    for (const char* module : {"self_attn.k_proj", "self_attn.v_proj"}) count(module, a.kv_size());
    const std::string mlp = layers[i].mlp.num_experts > 0 ? "mlp.experts.0." : "mlp.";
    for (const char* module : {"gate_proj", "up_proj", "down_proj"}) count(mlp + module, mlp_rows);
  }
  // With many tokens a GPU dequantizes one weight at a time.
  if (on_gpu) bytes += size * static_cast<double>(2 * most_rows * hidden_size);
  return static_cast<size_t>(bytes);
}

size_t ModelSpec::kv_bytes_per_token(DType dtype) const {
  return to_size(2 * num_layers() * attention().num_kv_heads) *
         kv_key_bytes(dtype, attention().head_dim);
}

}  // namespace nanovllm
