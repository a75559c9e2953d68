#pragma once

#include <cstdint>
#include <vector>

#include "nanovllm/model/model_config.h"
#include "nanovllm/ops/communicator.h"

namespace nanovllm {

/// One rank's part of a model: some attention heads, some columns of the MLP or of each expert, and
/// a part of the vocabulary. Nothing is padded: if a size is not divisible by the number of ranks,
/// the ranks have unequal parts.
struct Shard {
  /// The model's config, but num_heads, num_kv_heads, intermediate_size, moe_intermediate_size and
  /// vocab_size are those of this rank.
  ModelConfig config;
  Range heads, columns, expert_columns, vocab;  ///< which elements of the whole model these are
  /// For each local KV head, its index in the whole model. With fewer KV heads than ranks, a KV
  /// head is on several ranks.
  std::vector<int64_t> kv_heads;
};

/// Throws UserError if some rank would get no head, no column or no token.
Shard make_shard(const ModelConfig& model, Rank rank);

}  // namespace nanovllm
