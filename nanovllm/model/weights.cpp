#include "nanovllm/model/weights.h"

#include <algorithm>
#include <functional>
#include <initializer_list>
#include <optional>
#include <utility>

#include "nanovllm/base/check.h"
#include "nanovllm/model/checkpoint.h"
#include "nanovllm/model/dummy_weights.h"
#include "nanovllm/model/rope.h"

namespace nanovllm {

namespace {

/// Where tensors come from: name and shape in, the tensor out.
using Source = std::function<WeightRows(const std::string&, const std::vector<int64_t>&)>;

/// Tensors stacked into one slot: each one's name and rows, and which of those the rank takes.
struct Part {
  std::string name;
  int64_t rows;
  std::vector<Range> taken;
};
using Parts = std::initializer_list<Part>;

/// The rows of `count` elements each that belong to these heads; neighbours are one range.
std::vector<Range> rows_of(const std::vector<int64_t>& heads, int64_t count) {
  std::vector<Range> rows;
  for (const int64_t head : heads) {
    const int64_t first = head * count;
    if (!rows.empty() && rows.back().first + rows.back().count == first) rows.back().count += count;
    else rows.push_back({first, count});
  }
  return rows;
}

void append_as_float(std::vector<float>& out, const WeightRows& vector) {
  std::vector<char> bytes(static_cast<size_t>(vector.num_rows()) * vector.row_bytes());
  vector.read(0, vector.num_rows(), bytes.data());
  const Tensor t(bytes.data(), vector.dtype(), vector.num_rows());
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

/// Fills a model's slots.
class Loader {
 public:
  Loader(Model& model, Backend& backend, Source source)
      : model_(model), backend_(backend), source_(std::move(source)) {}

  /// Of tensors with `columns` columns the rank takes `taken`.
  WeightPtr matrix(Parts parts, int64_t columns, Range taken, unsigned use = kForMatmul) {
    std::vector<WeightRows> stacked;
    for (const Part& part : parts) {
      const WeightRows whole = source_(part.name, {part.rows, columns});
      for (const Range& rows : part.taken) stacked.push_back(whole.part(rows, taken));
    }
    return backend_.pack(stacked, model_.dtype, use);
  }

  Tensor vector(Parts parts) {
    std::vector<float> values;
    for (const Part& part : parts) {
      const WeightRows whole = source_(part.name, {part.rows});
      for (const Range& rows : part.taken) append_as_float(values, whole.part(rows, {0, 1}));
    }
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

  /// In parts: a context of millions of tokens has tables of a gigabyte, which the host need not
  /// hold twice.
  void rope_tables(const ModelConfig& config, int64_t num_positions) {
    constexpr int64_t kPositions = 8192;
    for (Tensor* table : {&model_.rope_cos, &model_.rope_sin}) {
      *table = Tensor(nullptr, DType::kF32, num_positions, config.head_dim / 2);
      model_.buffers.push_back(backend_.allocate(table->bytes()));
      table->data = model_.buffers.back().get();
    }
    for (int64_t first = 0; first < num_positions; first += kPositions) {
      const int64_t count = std::min(kPositions, num_positions - first);
      const RopeTables part = nanovllm::rope_tables(config.rope, config.head_dim, count, first);
      for (const auto& [table, values] :
           {std::pair(model_.rope_cos, &part.cos), {model_.rope_sin, &part.sin}})
        backend_.upload(table.rows(first, count).data, values->data(),
                        values->size() * sizeof(float));
    }
  }

 private:
  Model& model_;
  Backend& backend_;
  Source source_;
};

/// `c` is the whole model's.
Layer load_layer(Loader& load, const ModelConfig& c, const Shard& shard, int64_t index) {
  const std::string layer = fmt::format("model.layers.{}.", index);
  const std::string attn = layer + "self_attn.", mlp = layer + "mlp.";
  const Range hidden = {0, c.hidden_size};
  const Range q = {shard.heads.first * c.head_dim, shard.heads.count * c.head_dim};
  const std::vector<Range> kv = rows_of(shard.kv_heads, c.head_dim);
  const auto whole = [](const std::string& name, int64_t rows) {
    return Part{name, rows, {{0, rows}}};
  };
  Layer out;
  out.input_norm = {load.vector({whole(layer + "input_layernorm.weight", hidden.count)}),
                    c.rms_norm_eps};
  out.qkv = load.matrix({{attn + "q_proj.weight", c.q_size(), {q}},
                         {attn + "k_proj.weight", c.kv_size(), kv},
                         {attn + "v_proj.weight", c.kv_size(), kv}},
                        hidden.count, hidden);
  if (c.qkv_bias)
    out.qkv_bias = load.vector({{attn + "q_proj.bias", c.q_size(), {q}},
                                {attn + "k_proj.bias", c.kv_size(), kv},
                                {attn + "v_proj.bias", c.kv_size(), kv}});
  if (c.qk_norm) {
    out.q_norm = load.vector({whole(attn + "q_norm.weight", c.head_dim)});
    out.k_norm = load.vector({whole(attn + "k_norm.weight", c.head_dim)});
  }
  out.o = load.matrix({whole(attn + "o_proj.weight", hidden.count)}, c.q_size(), q);
  out.post_attention_norm = {
      load.vector({whole(layer + "post_attention_layernorm.weight", hidden.count)}),
      c.rms_norm_eps};
  out.gate_up = load.matrix({{mlp + "gate_proj.weight", c.intermediate_size, {shard.columns}},
                             {mlp + "up_proj.weight", c.intermediate_size, {shard.columns}}},
                            hidden.count, hidden);
  out.down = load.matrix({whole(mlp + "down_proj.weight", hidden.count)}, c.intermediate_size,
                         shard.columns);
  return out;
}

}  // namespace

std::unique_ptr<Model> load_model(const std::string& folder, const ModelConfig& config, DType dtype,
                                  bool dummy, Backend& backend, int64_t max_model_len, Rank rank) {
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
  const Shard shard = make_shard(config, rank);
  model->config = shard.config;
  model->dtype = dtype;
  model->weight_bytes = static_cast<size_t>(shard.config.num_parameters()) * dtype_size(dtype);
  Loader load(*model, backend, std::move(source));
  const bool tied = config.tie_word_embeddings;
  const Range hidden = {0, config.hidden_size};
  model->embed =
      load.matrix({{"model.embed_tokens.weight", config.vocab_size, {shard.vocab}}}, hidden.count,
                  hidden, tied ? kForEmbedding | kForMatmul : kForEmbedding);
  for (int64_t i = 0; i < config.num_layers; ++i)
    model->layers.push_back(load_layer(load, config, shard, i));
  model->norm = {load.vector({{"model.norm.weight", hidden.count, {hidden}}}), config.rms_norm_eps};
  model->lm_head = tied ? model->embed
                        : load.matrix({{"lm_head.weight", config.vocab_size, {shard.vocab}}},
                                      hidden.count, hidden);
  load.rope_tables(config, max_model_len);

  // Old Llama checkpoints store the rotary frequencies, and some the head again although it is
  // tied.
  if (checkpoint) {
    checkpoint->require_all_taken([&](const std::string& name) {
      return name.ends_with(".rotary_emb.inv_freq") || (tied && name == "lm_head.weight");
    });
    checkpoint->require_unchanged();
  }
  return model;
}

}  // namespace nanovllm
