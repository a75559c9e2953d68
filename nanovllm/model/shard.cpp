#include "nanovllm/model/shard.h"

#include <algorithm>
#include <numeric>

#include "nanovllm/base/ceil_div.h"
#include "nanovllm/base/check.h"

namespace nanovllm {

Shard make_shard(const ModelConfig& model, Rank rank) {
  // The columns of quantized weights are divided so that every part begins with a group.
  const auto unit_of = [&](int64_t columns, int64_t unit) {
    const int64_t wanted = model.quantization ? model.quantization->column_unit : 1;
    return rank.world * wanted <= columns ? std::max(unit, wanted) : unit;
  };
  const auto deal = [&](const char* name, int64_t total, int64_t unit) {
    const int64_t most = ceil_div(total, unit);
    require(rank.world <= most,
            "tensor_parallel_size is {}; with a {} of {} this model allows at most {}", rank.world,
            name, total, most);
    return share(total, unit, rank);
  };
  Shard shard;
  shard.config = model;
  // All query heads of a KV head are on one rank, if there are at least as many KV heads as ranks.
  const int64_t group = model.num_heads / model.num_kv_heads;
  shard.heads =
      deal("num_attention_heads", model.num_heads, model.num_kv_heads >= rank.world ? group : 1);
  shard.columns = deal("intermediate_size", model.intermediate_size,
                       unit_of(model.intermediate_size, kShareUnit));
  // Experts are narrow: for many ranks their columns are divided in smaller units.
  const int64_t expert_unit =
      model.moe_intermediate_size >= rank.world * kShareUnit ? kShareUnit : kShareUnit / 2;
  if (model.num_experts > 0)
    shard.expert_columns = deal("moe_intermediate_size", model.moe_intermediate_size,
                                unit_of(model.moe_intermediate_size, expert_unit));
  shard.vocab = deal("vocab_size", model.vocab_size, kShareUnit);
  // Every local KV head must serve the same number of query heads, hence the gcd. A KV head that
  // would serve more of them is on this rank several times.
  const int64_t served = std::gcd(std::gcd(shard.heads.first, shard.heads.count), group);
  for (int64_t i = 0; i < shard.heads.count; i += served)
    shard.kv_heads.push_back((shard.heads.first + i) / group);
  shard.config.num_heads = shard.heads.count;
  shard.config.num_kv_heads = static_cast<int64_t>(shard.kv_heads.size());
  shard.config.intermediate_size = shard.columns.count;
  shard.config.moe_intermediate_size = shard.expert_columns.count;
  shard.config.vocab_size = shard.vocab.count;
  return shard;
}

}  // namespace nanovllm
