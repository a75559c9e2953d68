#include <algorithm>
#include <limits>

#include "nanovllm/base/check.h"
#include "nanovllm/families/family.h"

namespace nanovllm {

namespace {

void refuse_unsupported(const JsonFields& config, const Defaults& defaults,
                        int64_t max_position_embeddings) {
  if (config.text("hidden_act", "silu") != "silu") config.refuse("hidden_act", "it must be silu");
  for (const char* key : {"attention_bias", "mlp_bias"})
    if (config.boolean(key, false)) config.refuse(key, "it must be false");
  if (config.boolean("use_sliding_window", false))
    config.refuse("use_sliding_window", "every layer attends to the whole context");
  if (defaults.sliding_window != 0) {
    const int64_t window = config.contains("sliding_window") && !config.find("sliding_window")
                               ? kMaxInt
                               : config.integer("sliding_window", kMaxInt, defaults.sliding_window);
    require(window >= max_position_embeddings,
            "{}sliding_window is {}, which is not supported: it must be null or at least "
            "max_position_embeddings, {}",
            config.prefix(), window, max_position_embeddings);
  }
  if (const Json* types = config.find("layer_types"))
    for (const Json& type : *types)
      if (type != "full_attention")
        config.refuse("layer_types", "every layer must be full_attention");
}

DType read_dtype(const JsonFields& config) {
  const char* key = config.find("dtype") != nullptr ? "dtype" : "torch_dtype";
  try {
    return parse_float_dtype(config.text(key, "float32"));
  } catch (const UserError& e) {
    fail("{}{}: {}", config.prefix(), key, e.what());
  }
}

AttentionSpec read_attention(const JsonFields& config, const Defaults& defaults,
                             int64_t hidden_size) {
  const std::string& prefix = config.prefix();
  AttentionSpec a;
  a.num_heads = config.integer("num_attention_heads", kMaxSize);
  // An explicit null differs from an absent key, for which the architecture may have a default.
  const auto absent = [&](const char* key, int64_t value, int64_t derived) {
    return value > 0 && !config.contains(key) ? value : derived;
  };
  a.num_kv_heads =
      config.integer("num_key_value_heads", kMaxSize,
                     absent("num_key_value_heads", defaults.num_kv_heads, a.num_heads));
  require(a.num_heads % a.num_kv_heads == 0,
          "{}num_attention_heads is {}; it must be a multiple of num_key_value_heads, {}", prefix,
          a.num_heads, a.num_kv_heads);
  const int64_t absent_head_dim = absent("head_dim", defaults.head_dim, 0);
  require(absent_head_dim > 0 || config.find("head_dim") || hidden_size % a.num_heads == 0,
          "{}hidden_size is {}; without head_dim it must be a multiple of num_attention_heads, {}",
          prefix, hidden_size, a.num_heads);
  a.head_dim = config.integer("head_dim", kMaxSize,
                              absent_head_dim > 0 ? absent_head_dim : hidden_size / a.num_heads);
  require(a.head_dim % 8 == 0, "{}head_dim is {}; it must be a multiple of 8", prefix, a.head_dim);
  require(a.q_size() <= kMaxSize, "{}num_attention_heads * head_dim is {}; it must be at most {}",
          prefix, a.q_size(), kMaxSize);
  return a;
}

}  // namespace

ModelSpec read_decoder(const ModelFiles& files, const Defaults& defaults) {
  const JsonFields& config = files.config;
  ModelSpec spec;
  spec.vocab_size = config.integer("vocab_size", kMaxSize);
  spec.hidden_size = config.integer("hidden_size", kMaxSize);
  LayerSpec layer;
  layer.mlp.size = config.integer("intermediate_size", kMaxSize);
  const int64_t num_layers = config.integer("num_hidden_layers", kMaxLayers);
  layer.attention = read_attention(config, defaults, spec.hidden_size);
  spec.layers.assign(static_cast<size_t>(num_layers), layer);
  spec.max_position_embeddings =
      config.integer("max_position_embeddings", kMaxInt, defaults.max_position_embeddings);
  if (const auto length = overridden_length(files.options)) spec.max_position_embeddings = *length;
  spec.rms_norm_eps = static_cast<float>(config.positive("rms_norm_eps", defaults.rms_norm_eps));
  spec.initializer_range = static_cast<float>(config.positive("initializer_range", 0.02));
  spec.tie_word_embeddings = config.boolean("tie_word_embeddings", defaults.tie_word_embeddings);
  spec.dtype = read_dtype(config);
  // Embedding and head stay floats, because the GPU's kernels for the embedding and for drawing
  // from the logits read floats.
  spec.quantization = parse_quantization(config, files.options.quantization,
                                         files.options.device == "cpu", files.quantization);
  const RopeConfig rope = read_rope(files, defaults.rope_theta, spec.max_position_embeddings);
  spec.ropes = {rope};
  // Published checkpoints leave max_position_embeddings as it is when yarn is added.
  if (rope.scaling == RopeConfig::Scaling::kYarn)
    spec.max_position_embeddings =
        std::max(spec.max_position_embeddings,
                 static_cast<int64_t>(std::min(rope.factor * rope.original_max_position_embeddings,
                                               double{kMaxInt})));
  refuse_unsupported(config, defaults, spec.max_position_embeddings);
  return spec;
}

}  // namespace nanovllm
