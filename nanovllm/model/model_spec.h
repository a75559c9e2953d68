#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "nanovllm/base/dtype.h"
#include "nanovllm/base/to_size.h"
#include "nanovllm/checkpoint/quantized/dialect.h"

namespace nanovllm {

/// The rotary embedding: the base of its frequencies, and how they are scaled for longer contexts.
struct RopeConfig {
  enum class Scaling { kNone, kLinear, kLlama3, kYarn };

  /// Whether the layer has no rotary embedding: every angle is 0.
  bool is_identity = false;
  double theta = 10000;
  Scaling scaling = Scaling::kNone;
  double factor = 1;                                 ///< how much longer the context becomes
  double original_max_position_embeddings = 0;       ///< llama3 and yarn
  double low_freq_factor = 1, high_freq_factor = 4;  ///< llama3
  double beta_fast = 32, beta_slow = 1;              ///< yarn
  bool truncate = true;                              ///< yarn
  double attention_factor = 1;                       ///< yarn: multiplies the cosines and sines
};

/// RMSNorms of q and k before the rotary embedding.
enum class QkNorm {
  kNone,
  kHead,   ///< a norm of each head, with weights [head_dim]
  kWhole,  ///< a norm of all heads together, with weights [q_size] and [kv_size]
};

/// Causal attention over the whole context. All layers of a model have caches of equal shapes.
struct AttentionSpec {
  int64_t num_heads = 0, num_kv_heads = 0, head_dim = 0;
  QkNorm qk_norm = QkNorm::kNone;
  bool qkv_bias = false;  ///< q_proj, k_proj and v_proj have a bias
  size_t rope = 0;        ///< which of ModelSpec::ropes

  int64_t q_size() const { return num_heads * head_dim; }
  int64_t kv_size() const { return num_kv_heads * head_dim; }
  int64_t qkv_size() const { return q_size() + 2 * kv_size(); }
};

/// SwiGLU of `size` columns, or a mixture of experts, each of which is one.
struct MlpSpec {
  int64_t size = 0;
  int64_t num_experts = 0;  ///< 0: dense
  int64_t experts_per_token = 0;
  bool normalize = false;  ///< the weights of a token's experts have the sum 1

  int64_t num_matrices() const { return num_experts > 0 ? num_experts : 1; }
};

/// A decoder layer: residual += after(attention(before(residual))), then
/// residual += after(mlp(before(residual))). `before` and `after` are RMSNorms, or nothing.
struct LayerSpec {
  /// The tensors of the norms in a checkpoint; null: there is no such norm.
  struct Norms {
    const char *before_attention = "input_layernorm", *after_attention = nullptr;
    const char *before_mlp = "post_attention_layernorm", *after_mlp = nullptr;
  };
  AttentionSpec attention;
  MlpSpec mlp;
  Norms norms;
};

/// A decoder as data: what forward() computes and load_model() reads. nanovllm/families makes it.
struct ModelSpec {
  std::string architecture;  ///< its name in config.json, for example Qwen3ForCausalLM
  int64_t hidden_size = 0, vocab_size = 0;
  std::vector<LayerSpec> layers;  ///< at least one
  std::vector<RopeConfig> ropes;
  int64_t max_position_embeddings = 0;
  float rms_norm_eps = 1e-6f;
  bool tie_word_embeddings = false;
  float initializer_range = 0.02f;
  DType dtype = DType::kF32;  ///< the checkpoint's dtype
  std::optional<Quantization> quantization;
  /// The ids of generation_config.json, then those of config.json, each once. May be empty.
  std::vector<int32_t> eos_token_ids;

  int64_t num_layers() const { return static_cast<int64_t>(layers.size()); }
  /// The attention of the first layer, whose cache has the shape of every layer's.
  const AttentionSpec& attention() const { return layers.front().attention; }

  /// The MLP of all layers that are mixtures of experts. num_experts is 0 if no layer is one.
  MlpSpec experts() const;
  int64_t num_expert_layers() const;
  int64_t num_parameters() const;
  /// The bytes of the parameters as weights of `dtype`; quantized ones count as a backend keeps
  /// them. A GPU also needs memory to dequantize the largest matrix.
  size_t weight_bytes(DType dtype, bool on_gpu) const;
  /// Bytes that one token takes in a KV cache of `dtype`, in all layers together.
  size_t kv_bytes_per_token(DType dtype) const;
  /// Bytes that one position takes in the tables of cosines and sines of all ropes.
  size_t rope_bytes_per_position() const {
    return ropes.size() * to_size(attention().head_dim) * sizeof(float);
  }
};

}  // namespace nanovllm
