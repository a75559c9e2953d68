#include "nanovllm/model/weights.h"

#include <algorithm>
#include <array>
#include <deque>
#include <future>
#include <optional>
#include <utility>

#include "nanovllm/base/check.h"
#include "nanovllm/base/system/machine.h"
#include "nanovllm/checkpoint/dummy_weights.h"
#include "nanovllm/model/rope.h"

namespace nanovllm {

namespace {

/// One of the tensors that are stacked into one weight: its name, its number of rows, and which of
/// the rows this rank takes.
struct Part {
  std::string name;
  int64_t rows;
  std::vector<Range> taken;
};
using Parts = std::vector<Part>;

/// The rows of these heads, each of which has `count` rows. Adjacent heads become one range.
std::vector<Range> rows_of(const std::vector<int64_t>& heads, int64_t count) {
  std::vector<Range> rows;
  for (const int64_t head : heads) {
    const int64_t first = head * count;
    if (!rows.empty() && rows.back().first + rows.back().count == first) rows.back().count += count;
    else rows.push_back({first, count});
  }
  return rows;
}

/// Reads tensors from `source` into the backend's memory. Without a backend it only asks `source`
/// for them, which checks their names, shapes and dtypes.
class Loader {
 public:
  Loader(Model& model, const ModelConfig& config, Backend* backend, TensorSource& source)
      : model_(model), quantization_(config.quantization), backend_(backend), source_(source) {}

  /// A weight stacked from `parts`, which have `columns` columns. The rank takes the columns
  /// `taken`. With `num_experts` it is as many matrices, whose parts follow each other.
  WeightPtr matrix(const Parts& parts, int64_t columns, Range taken, int64_t num_experts = 0) {
    std::vector<WeightRows> stacked;
    for (const Part& part : parts) {
      const WeightRows whole = take_weight(source_, quantization_, part.name, {part.rows, columns});
      for (const Range& rows : part.taken) stacked.push_back(whole.part(rows, taken));
    }
    if (backend_ == nullptr) return nullptr;
    return num_experts > 0 ? backend_->pack_experts(stacked, num_experts, model_.dtype)
                           : backend_->pack(stacked, model_.dtype);
  }

  Tensor vector(const Parts& parts) {
    std::vector<float> values;
    for (const Part& part : parts) {
      const WeightRows whole = source_.take(part.name, {part.rows});
      if (backend_ == nullptr) continue;
      for (const Range& rows : part.taken)
        for (const float value : read_floats(whole.part(rows, {0, 1}))) values.push_back(value);
    }
    if (backend_ == nullptr) return {};
    Tensor out = allocate(Tensor(nullptr, DType::kF32, static_cast<int64_t>(values.size())));
    backend_->upload(out.data, values.data(), out.bytes());
    return out;
  }

  /// Fills the tables piece by piece, of which several threads compute the next ones: with a
  /// context of millions of tokens they take a gigabyte, and the host should not store them a
  /// second time.
  void rope_tables(const ModelConfig& config, int64_t num_positions) {
    constexpr int64_t kPositions = 4096;
    const Tensor shape(nullptr, DType::kF32, num_positions, config.head_dim / 2);
    model_.rope_cos = allocate(shape);
    model_.rope_sin = allocate(shape);
    const auto count = [&](int64_t first) { return std::min(kPositions, num_positions - first); };
    std::deque<std::future<RopeTables>> pieces;
    int64_t begun = 0;
    for (int64_t first = 0; first < num_positions; first += kPositions) {
      for (; begun < num_positions && std::ssize(pieces) < num_usable_cpus(); begun += kPositions)
        pieces.push_back(
            std::async(nanovllm::rope_tables, config.rope, config.head_dim, count(begun), begun));
      const RopeTables piece = pieces.front().get();
      pieces.pop_front();
      const Tensor cos = model_.rope_cos.rows(first, count(first));
      backend_->upload(cos.data, piece.cos.data(), cos.bytes());
      backend_->upload(model_.rope_sin.rows(first, count(first)).data, piece.sin.data(),
                       cos.bytes());
    }
  }

 private:
  Tensor allocate(Tensor shape) {
    model_.buffers.push_back(backend_->allocate(shape.bytes()));
    shape.data = model_.buffers.back().get();
    return shape;
  }

  Model& model_;
  const std::optional<Quantization>& quantization_;
  Backend* backend_;
  TensorSource& source_;
};

/// `c` describes the whole model, `shard` this rank's part of it.
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
  const bool has_experts = c.has_experts(index);
  const int64_t num_experts = has_experts ? c.num_experts : 0;
  const int64_t size = has_experts ? c.moe_intermediate_size : c.intermediate_size;
  const Range columns = has_experts ? shard.expert_columns : shard.columns;
  if (has_experts)
    out.router = load.matrix({whole(mlp + "gate.weight", num_experts)}, hidden.count, hidden);
  Parts gate_up, down;
  for (int64_t e = 0; e < std::max<int64_t>(num_experts, 1); ++e) {
    const std::string from = has_experts ? fmt::format("{}experts.{}.", mlp, e) : mlp;
    gate_up.push_back({from + "gate_proj.weight", size, {columns}});
    gate_up.push_back({from + "up_proj.weight", size, {columns}});
    down.push_back(whole(from + "down_proj.weight", hidden.count));
  }
  out.gate_up = load.matrix(gate_up, hidden.count, hidden, num_experts);
  out.down = load.matrix(down, size, columns, num_experts);
  return out;
}

void load_tensors(Model& model, Loader& load, const ModelConfig& config, const Shard& shard) {
  const Range hidden = {0, config.hidden_size};
  model.embed = load.matrix({{"model.embed_tokens.weight", config.vocab_size, {shard.vocab}}},
                            hidden.count, hidden);
  for (int64_t i = 0; i < config.num_layers; ++i)
    model.layers.push_back(load_layer(load, config, shard, i));
  model.norm = {load.vector({{"model.norm.weight", hidden.count, {hidden}}}), config.rms_norm_eps};
  model.lm_head = config.tie_word_embeddings
                      ? model.embed
                      : load.matrix({{"lm_head.weight", config.vocab_size, {shard.vocab}}},
                                    hidden.count, hidden);
}

// Old Llama checkpoints also store the rotary frequencies, and some checkpoints store lm_head
// although it is tied to the embedding. Checkpoints made for activations or a cache in FP8 may have
// scales for them; here each token has its own scales instead.
void require_all_taken(const Checkpoint& checkpoint, const ModelConfig& config) {
  constexpr std::array kIgnored = {
      ".rotary_emb.inv_freq", ".input_scale", ".output_scale", ".k_scale", ".v_scale", ".kv_scale"};
  checkpoint.require_all_taken([&](const std::string& name) {
    return std::ranges::any_of(kIgnored, [&](const char* end) { return name.ends_with(end); }) ||
           (config.tie_word_embeddings && name == "lm_head.weight");
  });
}

}  // namespace

void load_model(Model& model, const std::string& folder, const ModelConfig& config, DType dtype,
                bool dummy, Backend& backend, int64_t max_model_len, Rank rank,
                const std::function<void()>& meanwhile) {
  std::unique_ptr<TensorSource> random;
  std::optional<Checkpoint> checkpoint;
  if (dummy)
    random = dummy_weights(dtype, config.initializer_range, [&](const std::string& module) {
      return is_quantized(config.quantization, module);
    });
  else checkpoint.emplace(folder);

  const Shard shard = make_shard(config, rank);
  model.config = shard.config;
  model.dtype = dtype;
  model.weight_bytes = shard.config.weight_bytes(dtype, /*on_gpu=*/true);
  Loader load(model, config, &backend, dummy ? *random : *checkpoint);
  backend.load_weights([&] {
    load_tensors(model, load, config, shard);
    if (checkpoint) require_all_taken(*checkpoint, config);
    load.rope_tables(config, max_model_len);
    meanwhile();
  });
  if (checkpoint) checkpoint->require_unchanged();
}

CheckpointSize check_weights(const std::string& folder, const ModelConfig& config) {
  Checkpoint checkpoint(folder);
  Model model;
  Loader load(model, config, nullptr, checkpoint);
  load_tensors(model, load, config, make_shard(config, {}));
  require_all_taken(checkpoint, config);
  return checkpoint.size();
}

}  // namespace nanovllm
