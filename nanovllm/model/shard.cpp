#include "nanovllm/model/shard.h"

#include <algorithm>
#include <numeric>

#include "nanovllm/base/ceil_div.h"
#include "nanovllm/base/check.h"

namespace nanovllm {

namespace {

Range deal(const char* name, int64_t total, int64_t unit, Rank rank) {
  const int64_t most = ceil_div(total, unit);
  require(rank.world <= most,
          "tensor_parallel_size is {}; with a {} of {} this model allows at most {}", rank.world,
          name, total, most);
  return share(total, unit, rank);
}

LayerShard make_layer_shard(const ModelSpec& model, const LayerSpec& layer, Rank rank) {
  const AttentionSpec& a = layer.attention;
  LayerShard shard;
  // All query heads of a KV head are on one rank, if there are at least as many KV heads as ranks.
  const int64_t group = a.num_heads / a.num_kv_heads;
  shard.heads =
      deal("num_attention_heads", a.num_heads, a.num_kv_heads >= rank.world ? group : 1, rank);
  // Experts are narrow: for many ranks their columns are divided in smaller units.
  const bool has_experts = layer.mlp.num_experts > 0;
  int64_t unit =
      !has_experts || layer.mlp.size >= rank.world * kShareUnit ? kShareUnit : kShareUnit / 2;
  // The columns of quantized weights are divided so that every part begins with a group.
  const int64_t groups = model.quantization ? model.quantization->column_unit : 1;
  if (rank.world * groups <= layer.mlp.size) unit = std::max(unit, groups);
  shard.columns =
      deal(has_experts ? "moe_intermediate_size" : "intermediate_size", layer.mlp.size, unit, rank);
  // Every local KV head must serve the same number of query heads, hence the gcd. A KV head that
  // would serve more of them is on this rank several times.
  const int64_t served = std::gcd(std::gcd(shard.heads.first, shard.heads.count), group);
  for (int64_t i = 0; i < shard.heads.count; i += served)
    shard.kv_heads.push_back((shard.heads.first + i) / group);
  return shard;
}

}  // namespace

Shard make_shard(const ModelSpec& model, Rank rank) {
  Shard shard;
  shard.model = model;
  for (LayerSpec& layer : shard.model.layers) {
    LayerShard own = make_layer_shard(model, layer, rank);
    layer.attention.num_heads = own.heads.count;
    layer.attention.num_kv_heads = static_cast<int64_t>(own.kv_heads.size());
    layer.mlp.size = own.columns.count;
    shard.layers.push_back(std::move(own));
  }
  shard.vocab = deal("vocab_size", model.vocab_size, kShareUnit, rank);
  shard.model.vocab_size = shard.vocab.count;
  return shard;
}

}  // namespace nanovllm
