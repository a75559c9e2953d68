#pragma once

#include <cstdint>
#include <vector>

#include "nanovllm/model/model_config.h"
#include "nanovllm/ops/communicator.h"

namespace nanovllm {

/// What one rank holds of a model: whole heads, some of the MLP's columns, some of the vocabulary.
/// Nothing is padded: where the number of ranks does not divide a size, ranks have unequal parts.
struct Shard {
  /// The model's, but num_heads, num_kv_heads, intermediate_size and vocab_size are the rank's own.
  ModelConfig config;
  Range heads, columns, vocab;  ///< which of the model's those are
  /// The model's KV head behind each of the rank's own. A head stands in several ranks where there
  /// are fewer than ranks.
  std::vector<int64_t> kv_heads;
};

/// Throws UserError where some rank would get no head, no column or no token.
Shard make_shard(const ModelConfig& model, Rank rank);

}  // namespace nanovllm
