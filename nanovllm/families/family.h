#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "nanovllm/base/config.h"
#include "nanovllm/base/json_fields.h"
#include "nanovllm/model/model_spec.h"

namespace nanovllm {

// If sizes are at most 2^22, also those of all experts together, and there are at most 2^13 layers,
// a model has fewer than 2^61 parameters, so their number of bytes fits in 64 bits.
inline constexpr int64_t kMaxSize = int64_t{1} << 22;
inline constexpr int64_t kMaxLayers = 8192, kMaxExperts = 4096;
inline constexpr int64_t kMaxInt = (int64_t{1} << 31) - 1;

/// A checkpoint's config.json, and everything else that decides the shape of its model.
struct ModelFiles {
  const JsonFields& config;
  const EngineConfig& options;
  /// The quantization_config of a separate file, which is used if config.json has none.
  const std::optional<JsonFields>& quantization;
};

/// The values that the configuration class of an architecture in transformers has for absent keys.
struct Defaults {
  int64_t num_kv_heads = 0;  ///< 0: the number of query heads
  int64_t head_dim = 0;      ///< 0: hidden_size / num_attention_heads
  int64_t max_position_embeddings = 32768;
  int64_t sliding_window = 0;  ///< 0: none, unless use_sliding_window is true
  double rms_norm_eps = 1e-6, rope_theta = 10000;
  bool tie_word_embeddings = false;
};

// Each of these functions reads the models of one architecture. They throw UserError that names the
// key if a value is wrong or not supported.
ModelSpec read_qwen2(const ModelFiles& files);
ModelSpec read_qwen3(const ModelFiles& files);
ModelSpec read_qwen3_moe(const ModelFiles& files);
ModelSpec read_llama(const ModelFiles& files);
ModelSpec read_mistral(const ModelFiles& files);
ModelSpec read_smollm3(const ModelFiles& files);
ModelSpec read_olmo2(const ModelFiles& files);

/// Reads the keys that the families share: a decoder whose layers are alike, each with norms before
/// attention and MLP, a rotary embedding and SwiGLU. A family then changes the parts in which it
/// differs.
ModelSpec read_decoder(const ModelFiles& files, const Defaults& defaults);

/// The rotary embedding of config.json, or the one with which the options replace it.
RopeConfig read_rope(const ModelFiles& files, double default_theta,
                     int64_t max_position_embeddings);
/// The max_position_embeddings of --hf-overrides, if it has one.
std::optional<int64_t> overridden_length(const EngineConfig& options);

}  // namespace nanovllm
