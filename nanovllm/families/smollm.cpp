#include "nanovllm/base/check.h"
#include "nanovllm/families/family.h"

namespace nanovllm {

/// SmolLM3: a Llama some of whose layers, by default every fourth one, have no rotary embedding.
/// Source: Bakouch et al., "SmolLM3: smol, multilingual, long-context reasoner", 2025; for the
/// layers, Yang et al., "RoPE to NoPE and Back Again", 2025.
ModelSpec read_smollm3(const ModelFiles& files) {
  const JsonFields& config = files.config;
  ModelSpec spec = read_decoder(
      files, {.num_kv_heads = 4, .rope_theta = 2'000'000, .tie_word_embeddings = true});
  const Json* rotated = config.find("no_rope_layers");
  const int64_t interval = config.integer("no_rope_layer_interval", kMaxLayers, 4);
  require(rotated == nullptr || (rotated->is_array() && rotated->size() >= spec.layers.size()),
          "{}no_rope_layers must be a list of {} numbers, 1 for each layer with a rotary embedding",
          config.prefix(), spec.layers.size());
  spec.ropes.push_back({.is_identity = true});
  for (size_t i = 0; i < spec.layers.size(); ++i) {
    bool has_rope = (static_cast<int64_t>(i) + 1) % interval != 0;
    if (rotated != nullptr) {
      const Json& value = (*rotated)[i];
      require(value.is_number_integer() && (value == 0 || value == 1),
              "{}no_rope_layers has {}; each number must be 0 or 1", config.prefix(),
              printable(value));
      has_rope = value == 1;
    }
    spec.layers[i].attention.rope = has_rope ? 0 : 1;
  }
  return spec;
}

}  // namespace nanovllm
