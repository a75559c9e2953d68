#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "nanovllm/base/config.h"
#include "nanovllm/base/dtype.h"
#include "nanovllm/base/json.h"
#include "nanovllm/checkpoint/quantized/dialect.h"

namespace nanovllm {

/// Parameters of the rotary embedding: the base of its frequencies, and how they are scaled for
/// longer contexts.
struct RopeConfig {
  enum class Scaling { kNone, kLinear, kLlama3, kYarn };

  double theta = 10000;
  Scaling scaling = Scaling::kNone;
  double factor = 1;                                 ///< how much longer the context becomes
  double original_max_position_embeddings = 0;       ///< llama3 and yarn
  double low_freq_factor = 1, high_freq_factor = 4;  ///< llama3
  double beta_fast = 32, beta_slow = 1;              ///< yarn
  bool truncate = true;                              ///< yarn
  double attention_factor = 1;                       ///< yarn: multiplies the cosines and sines
};

/// The shape of a decoder, read from its config.json and generation_config.json. Absent keys
/// have the defaults of transformers.
struct ModelConfig {
  std::string architecture;  ///< as in config.json, for example Qwen3ForCausalLM
  int64_t hidden_size = 0, intermediate_size = 0, num_layers = 0;
  int64_t num_heads = 0, num_kv_heads = 0, head_dim = 0;
  int64_t vocab_size = 0;
  int64_t num_experts = 0;  ///< 0: every MLP is dense
  int64_t num_experts_per_tok = 0, moe_intermediate_size = 0;
  bool norm_topk_prob = false;      ///< the weights of a token's experts have the sum 1
  std::vector<bool> expert_layers;  ///< for each layer, whether its MLP is a mixture of experts
  int64_t max_position_embeddings = 0;
  float rms_norm_eps = 1e-6f;
  RopeConfig rope;
  bool tie_word_embeddings = false;
  bool qk_norm = false;   ///< RMSNorm of each head's q and k before the rotary embedding
  bool qkv_bias = false;  ///< q_proj, k_proj and v_proj have a bias
  float initializer_range = 0.02f;
  DType dtype = DType::kF32;  ///< of the checkpoint
  std::optional<Quantization> quantization;
  /// From generation_config.json, then from config.json, each once. May be empty.
  std::vector<int32_t> eos_token_ids;

  /// Reads the files of a checkpoint folder; rope_scaling and hf_overrides of `options` replace
  /// what config.json says. Throws UserError that names the file and the key if a value is wrong or
  /// not supported. If the folder is missing and can be the id of a model, the error says how to
  /// download it.
  static ModelConfig load(const std::string& folder, const EngineConfig& options = {});
  /// The same from parsed files (`generation_config` may be null). Each error begins with `where`.
  /// `quantization_file` counts if config.json has no quantization_config.
  static ModelConfig parse(const Json& config, const Json& generation_config,
                           const std::string& where, const EngineConfig& options = {},
                           const std::optional<JsonFields>& quantization_file = {});

  int64_t q_size() const { return num_heads * head_dim; }
  int64_t kv_size() const { return num_kv_heads * head_dim; }
  int64_t qkv_size() const { return q_size() + 2 * kv_size(); }
  bool has_experts(int64_t layer) const {
    return num_experts > 0 && expert_layers[static_cast<size_t>(layer)];
  }

  int64_t num_parameters() const;
  /// Bytes of the parameters as weights of `dtype`, quantized ones as a backend keeps them. A GPU
  /// also needs memory to dequantize the largest matrix.
  size_t weight_bytes(DType dtype, bool on_gpu) const;
  /// Bytes that one token takes in a KV cache of `dtype`, in all layers together.
  size_t kv_bytes_per_token(DType dtype) const;
};

}  // namespace nanovllm
