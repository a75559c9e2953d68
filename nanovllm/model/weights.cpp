#include "nanovllm/model/weights.h"

#include <functional>
#include <initializer_list>
#include <optional>

#include "nanovllm/base/check.h"
#include "nanovllm/model/checkpoint.h"
#include "nanovllm/model/dummy_weights.h"
#include "nanovllm/model/rope.h"

namespace nanovllm {

namespace {

/// Where tensors come from: name and shape in, the tensor out.
using Source = std::function<HostTensor(const std::string&, const std::vector<int64_t>&)>;

/// Tensors stacked into one slot: each one's name and rows.
struct Part {
  std::string name;
  int64_t rows;
};
using Parts = std::initializer_list<Part>;

void append_as_float(std::vector<float>& out, const Tensor& t) {
  for (int64_t i = 0; i < t.size(); ++i) {
    switch (t.dtype) {
      case DType::kBF16:
        out.push_back(bf16_to_f32(t.as<const uint16_t>()[i]));
        break;
      case DType::kF16:
        out.push_back(f16_to_f32(t.as<const uint16_t>()[i]));
        break;
      default:
        out.push_back(t.as<const float>()[i]);
    }
  }
}

/// Fills a model's slots; the host's copy of each tensor is let go as soon as its slot is filled.
class Loader {
 public:
  Loader(Model& model, Backend& backend, Source source)
      : model_(model), backend_(backend), source_(std::move(source)) {}

  WeightPtr matrix(Parts parts, int64_t columns, unsigned use = kForMatmul) {
    std::vector<Tensor> views;
    std::vector<std::shared_ptr<const void>> memory;
    for (const Part& part : parts) {
      const HostTensor tensor = source_(part.name, {part.rows, columns});
      views.push_back(tensor.view);
      memory.push_back(tensor.memory);
    }
    if ((use & kForEmbedding) != 0) model_.embed_memory = memory.front();
    return backend_.pack(views, model_.dtype, use);
  }

  Tensor vector(Parts parts) {
    std::vector<float> values;
    for (const Part& part : parts) append_as_float(values, source_(part.name, {part.rows}).view);
    return upload(values, static_cast<int64_t>(values.size()), 1);
  }

  /// Table [n, k]; a vector where k is 1.
  Tensor upload(const std::vector<float>& values, int64_t n, int64_t k) {
    const size_t bytes = values.size() * sizeof(float);
    model_.buffers.push_back(backend_.allocate(bytes));
    void* data = model_.buffers.back().get();
    backend_.upload(data, values.data(), bytes);
    return k == 1 ? Tensor(data, DType::kF32, n) : Tensor(data, DType::kF32, n, k);
  }

 private:
  Model& model_;
  Backend& backend_;
  Source source_;
};

Layer load_layer(Loader& load, const ModelConfig& c, int64_t index) {
  const std::string layer = fmt::format("model.layers.{}.", index);
  const std::string attn = layer + "self_attn.", mlp = layer + "mlp.";
  const int64_t q = c.q_size(), kv = c.kv_size(), hidden = c.hidden_size;
  Layer out;
  out.input_norm = load.vector({{layer + "input_layernorm.weight", hidden}});
  out.qkv = load.matrix(
      {{attn + "q_proj.weight", q}, {attn + "k_proj.weight", kv}, {attn + "v_proj.weight", kv}},
      hidden);
  if (c.qkv_bias)
    out.qkv_bias = load.vector(
        {{attn + "q_proj.bias", q}, {attn + "k_proj.bias", kv}, {attn + "v_proj.bias", kv}});
  if (c.qk_norm) {
    out.q_norm = load.vector({{attn + "q_norm.weight", c.head_dim}});
    out.k_norm = load.vector({{attn + "k_norm.weight", c.head_dim}});
  }
  out.o = load.matrix({{attn + "o_proj.weight", hidden}}, q);
  out.post_attention_norm = load.vector({{layer + "post_attention_layernorm.weight", hidden}});
  out.gate_up = load.matrix({{mlp + "gate_proj.weight", c.intermediate_size},
                             {mlp + "up_proj.weight", c.intermediate_size}},
                            hidden);
  out.down = load.matrix({{mlp + "down_proj.weight", hidden}}, c.intermediate_size);
  return out;
}

}  // namespace

std::unique_ptr<Model> load_model(const std::string& folder, const ModelConfig& config, DType dtype,
                                  bool dummy, Backend& backend, int64_t max_model_len) {
  std::optional<Checkpoint> checkpoint;
  Source source;
  if (dummy) {
    source = DummyWeights(dtype, config.initializer_range);
  } else {
    checkpoint.emplace(folder);
    source = [&](const std::string& name, const std::vector<int64_t>& shape) {
      return checkpoint->take(name, shape);
    };
  }

  auto model = std::make_unique<Model>();
  model->config = config;
  model->dtype = dtype;
  model->weight_bytes = static_cast<size_t>(config.num_parameters()) * dtype_size(dtype);
  Loader load(*model, backend, std::move(source));
  const bool tied = config.tie_word_embeddings;
  model->embed = load.matrix({{"model.embed_tokens.weight", config.vocab_size}}, config.hidden_size,
                             tied ? kForEmbedding | kForMatmul : kForEmbedding);
  for (int64_t i = 0; i < config.num_layers; ++i)
    model->layers.push_back(load_layer(load, config, i));
  model->norm = load.vector({{"model.norm.weight", config.hidden_size}});
  model->lm_head = tied ? model->embed
                        : load.matrix({{"lm_head.weight", config.vocab_size}}, config.hidden_size);
  const RopeTables tables = rope_tables(config.rope, config.head_dim, max_model_len);
  model->rope_cos = load.upload(tables.cos, max_model_len, config.head_dim / 2);
  model->rope_sin = load.upload(tables.sin, max_model_len, config.head_dim / 2);

  // Old Llama checkpoints store the rotary frequencies, and some the head again although it is
  // tied.
  if (checkpoint)
    checkpoint->require_all_taken([&](const std::string& name) {
      return name.ends_with(".rotary_emb.inv_freq") || (tied && name == "lm_head.weight");
    });
  return model;
}

}  // namespace nanovllm
