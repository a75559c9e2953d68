#include "nanovllm/model/weights.h"

#include <algorithm>
#include <array>
#include <deque>
#include <future>
#include <optional>

#include "nanovllm/base/ceil_div.h"
#include "nanovllm/base/check.h"
#include "nanovllm/base/system/machine.h"
#include "nanovllm/base/to_size.h"
#include "nanovllm/checkpoint/dummy_weights.h"
#include "nanovllm/model/rope.h"

namespace nanovllm {

namespace {

/// One of the tensors that are stacked into one weight, and which of its rows this rank takes.
struct Part {
  std::string name;
  int64_t rows;
  std::vector<Range> taken = {{0, rows}};
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

/// Reads tensors from `source` into the backend's memory. Without a backend it only asks for them,
/// so `source` checks their names, shapes and dtypes.
class Loader {
 public:
  Loader(Model& model, const ModelSpec& spec, Backend* backend, TensorSource& source)
      : model_(model), quantization_(spec.quantization), backend_(backend), source_(source) {}

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
    return vector(values);
  }

  /// A vector of float32 that is not in the checkpoint.
  Tensor vector(const std::vector<float>& values) {
    if (backend_ == nullptr) return {};
    Tensor out = allocate(Tensor(nullptr, DType::kF32, std::ssize(values)));
    backend_->upload(out.data, values.data(), out.bytes());
    return out;
  }

  /// Fills the tables piece by piece, while several threads compute the next pieces. With a context
  /// of millions of tokens the tables take a gigabyte, which the host should not store as well.
  Rope rope_tables(const RopeConfig& config, int64_t head_dim, int64_t num_positions) {
    constexpr int64_t kPositions = 4096;
    const Tensor shape(nullptr, DType::kF32, num_positions, head_dim / 2);
    const Rope rope = {allocate(shape), allocate(shape)};
    const auto count = [&](int64_t first) { return std::min(kPositions, num_positions - first); };
    std::deque<std::future<RopeTables>> pieces;
    int64_t begun = 0;
    for (int64_t first = 0; first < num_positions; first += kPositions) {
      for (; begun < num_positions && std::ssize(pieces) < num_usable_cpus(); begun += kPositions)
        pieces.push_back(std::async(nanovllm::rope_tables, config, head_dim, count(begun), begun));
      const RopeTables piece = pieces.front().get();
      pieces.pop_front();
      const Tensor cos = rope.cos.rows(first, count(first));
      backend_->upload(cos.data, piece.cos.data(), cos.bytes());
      backend_->upload(rope.sin.rows(first, count(first)).data, piece.sin.data(), cos.bytes());
    }
    return rope;
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

/// Layer::k_counted. Every KV head is counted once, by the first rank that has it.
std::vector<float> counted_columns(const AttentionSpec& whole, const LayerShard& shard) {
  // The ranks before this one count the KV heads below `next`, those of their query heads.
  int64_t next = ceil_div(shard.heads.first, whole.num_heads / whole.num_kv_heads);
  std::vector<float> counted;
  for (const int64_t head : shard.kv_heads) {
    counted.insert(counted.end(), to_size(whole.head_dim), head < next ? 0.0f : 1.0f);
    next = head + 1;
  }
  return counted;
}

/// `spec` describes the whole model, `shard` this rank's part of layer `index`.
Layer load_layer(Loader& load, const ModelSpec& spec, const LayerShard& shard, size_t index) {
  const LayerSpec& layer = spec.layers[index];
  const AttentionSpec& a = layer.attention;
  const std::string name = fmt::format("model.layers.{}.", index);
  const std::string attn = name + "self_attn.", mlp = name + "mlp.";
  const Range hidden = {0, spec.hidden_size};
  const Range q = {shard.heads.first * a.head_dim, shard.heads.count * a.head_dim};
  const std::vector<Range> kv = rows_of(shard.kv_heads, a.head_dim);
  const auto norm = [&](const char* tensor) -> Norm {
    if (tensor == nullptr) return {};
    return {load.vector({{name + tensor + ".weight", hidden.count}}), spec.rms_norm_eps};
  };
  Layer out;
  out.before_attention = norm(layer.norms.before_attention);
  out.qkv = load.matrix({{attn + "q_proj.weight", a.q_size(), {q}},
                         {attn + "k_proj.weight", a.kv_size(), kv},
                         {attn + "v_proj.weight", a.kv_size(), kv}},
                        hidden.count, hidden);
  if (a.qkv_bias)
    out.qkv_bias = load.vector({{attn + "q_proj.bias", a.q_size(), {q}},
                                {attn + "k_proj.bias", a.kv_size(), kv},
                                {attn + "v_proj.bias", a.kv_size(), kv}});
  if (a.qk_norm == QkNorm::kHead) {
    out.q_norm = load.vector({{attn + "q_norm.weight", a.head_dim}});
    out.k_norm = load.vector({{attn + "k_norm.weight", a.head_dim}});
  }
  if (a.qk_norm == QkNorm::kWhole) {
    out.q_norm = load.vector({{attn + "q_norm.weight", a.q_size(), {q}}});
    out.k_norm = load.vector({{attn + "k_norm.weight", a.kv_size(), kv}});
    const std::vector<float> counted = counted_columns(a, shard);
    if (std::ranges::count(counted, 0.0f) > 0) out.k_counted = load.vector(counted);
  }
  out.o = load.matrix({{attn + "o_proj.weight", hidden.count}}, a.q_size(), q);
  out.after_attention = norm(layer.norms.after_attention);
  out.before_mlp = norm(layer.norms.before_mlp);
  const int64_t num_experts = layer.mlp.num_experts;
  if (num_experts > 0)
    out.router = load.matrix({{mlp + "gate.weight", num_experts}}, hidden.count, hidden);
  Parts gate_up, down;
  for (int64_t e = 0; e < layer.mlp.num_matrices(); ++e) {
    const std::string from = num_experts > 0 ? fmt::format("{}experts.{}.", mlp, e) : mlp;
    gate_up.push_back({from + "gate_proj.weight", layer.mlp.size, {shard.columns}});
    gate_up.push_back({from + "up_proj.weight", layer.mlp.size, {shard.columns}});
    down.push_back({from + "down_proj.weight", hidden.count});
  }
  out.gate_up = load.matrix(gate_up, hidden.count, hidden, num_experts);
  out.down = load.matrix(down, layer.mlp.size, shard.columns, num_experts);
  out.after_mlp = norm(layer.norms.after_mlp);
  return out;
}

void load_tensors(Model& model, Loader& load, const ModelSpec& spec, const Shard& shard) {
  const Range hidden = {0, spec.hidden_size};
  model.embed = load.matrix({{"model.embed_tokens.weight", spec.vocab_size, {shard.vocab}}},
                            hidden.count, hidden);
  for (size_t i = 0; i < spec.layers.size(); ++i)
    model.layers.push_back(load_layer(load, spec, shard.layers[i], i));
  model.norm = {load.vector({{"model.norm.weight", hidden.count}}), spec.rms_norm_eps};
  model.lm_head =
      spec.tie_word_embeddings
          ? model.embed
          : load.matrix({{"lm_head.weight", spec.vocab_size, {shard.vocab}}}, hidden.count, hidden);
}

// Old Llama checkpoints also store the rotary frequencies, and some checkpoints store lm_head
// although it is tied to the embedding. Checkpoints made for activations or a cache in FP8 may have
// scales for them; here each token has its own scales instead.
void require_all_taken(const Checkpoint& checkpoint, const ModelSpec& spec) {
  constexpr std::array kIgnored = {
      ".rotary_emb.inv_freq", ".input_scale", ".output_scale", ".k_scale", ".v_scale", ".kv_scale"};
  checkpoint.require_all_taken([&](const std::string& name) {
    return std::ranges::any_of(kIgnored, [&](const char* end) { return name.ends_with(end); }) ||
           (spec.tie_word_embeddings && name == "lm_head.weight");
  });
}

}  // namespace

void load_model(Model& model, const std::string& folder, const ModelSpec& spec, DType dtype,
                bool dummy, Backend& backend, int64_t max_model_len, Rank rank,
                const std::function<void()>& meanwhile) {
  std::unique_ptr<TensorSource> random;
  std::optional<Checkpoint> checkpoint;
  if (dummy)
    random = dummy_weights(dtype, spec.initializer_range, [&](const std::string& module) {
      return is_quantized(spec.quantization, module);
    });
  else checkpoint.emplace(folder);

  const Shard shard = make_shard(spec, rank);
  model.spec = shard.model;
  model.whole_attention = spec.attention();
  model.dtype = dtype;
  Loader load(model, spec, &backend, dummy ? *random : *checkpoint);
  backend.load_weights([&] {
    load_tensors(model, load, spec, shard);
    if (checkpoint) require_all_taken(*checkpoint, spec);
    for (const RopeConfig& rope : spec.ropes)
      model.ropes.push_back(load.rope_tables(rope, spec.attention().head_dim, max_model_len));
    meanwhile();
  });
  if (checkpoint) checkpoint->require_unchanged();
}

CheckpointSize check_weights(const std::string& folder, const ModelSpec& spec) {
  Checkpoint checkpoint(folder);
  Model model;
  Loader load(model, spec, nullptr, checkpoint);
  load_tensors(model, load, spec, make_shard(spec, {}));
  require_all_taken(checkpoint, spec);
  return checkpoint.size();
}

}  // namespace nanovllm
