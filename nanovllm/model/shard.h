#pragma once

#include <cstdint>
#include <vector>

#include "nanovllm/model/model_spec.h"
#include "nanovllm/ops/rows.h"

namespace nanovllm {

/// One rank's part of a layer: some attention heads, and some columns of the MLP or of each expert.
struct LayerShard {
  Range heads, columns;  ///< its part of the heads and columns of the whole layer
  /// The index of each local KV head in the whole layer. It may be on several ranks.
  std::vector<int64_t> kv_heads;
};

/// One rank's part of a model: its part of each layer, and a part of the vocabulary. Nothing is
/// padded: if a size is not divisible by the number of ranks, the ranks have unequal parts.
struct Shard {
  ModelSpec model;  ///< with the heads, columns and vocabulary of this rank
  std::vector<LayerShard> layers;
  Range vocab;
};

/// Throws UserError if some rank would get no head, no column or no token.
Shard make_shard(const ModelSpec& model, Rank rank);

}  // namespace nanovllm
