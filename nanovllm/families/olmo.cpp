#include "nanovllm/families/family.h"

namespace nanovllm {

/// OLMo 2. Its norms apply to the output of attention and MLP, which is added to the residual,
/// instead of their input, and the norms of q and k are over all heads. Source: OLMo team, "2 OLMo
/// 2 Furious", 2025.
ModelSpec read_olmo2(const ModelFiles& files) {
  ModelSpec spec = read_decoder(files, {.max_position_embeddings = 2048, .rms_norm_eps = 1e-5});
  for (LayerSpec& layer : spec.layers) {
    layer.norms = {.before_attention = nullptr,
                   .after_attention = "post_attention_layernorm",
                   .before_mlp = nullptr,
                   .after_mlp = "post_feedforward_layernorm"};
    layer.attention.qk_norm = QkNorm::kWhole;
  }
  return spec;
}

}  // namespace nanovllm
