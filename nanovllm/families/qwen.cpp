#include "nanovllm/base/check.h"
#include "nanovllm/families/family.h"

namespace nanovllm {

/// Source: Qwen team, "Qwen2 Technical Report", 2024.
ModelSpec read_qwen2(const ModelFiles& files) {
  ModelSpec spec = read_decoder(files, {.num_kv_heads = 32});
  for (LayerSpec& layer : spec.layers) layer.attention.qkv_bias = true;
  return spec;
}

static void add_head_norms(ModelSpec& spec) {
  for (LayerSpec& layer : spec.layers) layer.attention.qk_norm = QkNorm::kHead;
}

/// Source: Qwen team, "Qwen3 Technical Report", 2025.
ModelSpec read_qwen3(const ModelFiles& files) {
  ModelSpec spec = read_decoder(files, {.num_kv_heads = 32, .head_dim = 128});
  add_head_norms(spec);
  return spec;
}

/// Qwen3 whose MLPs are mixtures of experts, except in some layers.
ModelSpec read_qwen3_moe(const ModelFiles& files) {
  const JsonFields& config = files.config;
  ModelSpec spec = read_decoder(files, {.num_kv_heads = 4});
  add_head_norms(spec);

  // transformers 5 uses the second name, for all architectures.
  const char* key = config.find("num_experts") != nullptr ? "num_experts" : "num_local_experts";
  MlpSpec experts;
  experts.num_experts = config.integer(key, kMaxExperts, 128);
  experts.experts_per_token = config.integer("num_experts_per_tok", experts.num_experts, 8);
  experts.size = config.integer("moe_intermediate_size", kMaxSize / experts.num_experts, 768);
  experts.normalize = config.boolean("norm_topk_prob", false);
  const int64_t step = config.integer("decoder_sparse_step", kMaxInt, 1);
  std::vector<bool> is_dense(spec.layers.size());
  if (const Json* dense = config.find("mlp_only_layers"))
    for (const Json& layer : *dense) {
      require(layer.is_number_integer() && layer >= 0 && layer < spec.num_layers(),
              "{}mlp_only_layers is {}; it must be a list of layers, 0 to {}", config.prefix(),
              printable(*dense), spec.num_layers() - 1);
      is_dense[layer.get<size_t>()] = true;
    }
  for (size_t i = 0; i < spec.layers.size(); ++i)
    if ((static_cast<int64_t>(i) + 1) % step == 0 && !is_dense[i]) spec.layers[i].mlp = experts;
  return spec;
}

}  // namespace nanovllm
