#pragma once

#include <cstdint>
#include <vector>

#include "nanovllm/model/model_spec.h"

namespace nanovllm {

/// The angle in radians by which each pair of a head's elements is rotated from one position to the
/// next, [head_dim / 2], in float32 as in transformers (modeling_rope_utils.py). Source: Su et al.,
/// "RoFormer: Enhanced Transformer with Rotary Position Embedding", 2021.
std::vector<float> rope_frequencies(const RopeConfig& rope, int64_t head_dim);

/// Cosines and sines of position * frequency, times RopeConfig::attention_factor, each
/// [num_positions, head_dim / 2], starting with position `first`.
struct RopeTables {
  std::vector<float> cos, sin;
};
RopeTables rope_tables(const RopeConfig& rope, int64_t head_dim, int64_t num_positions,
                       int64_t first = 0);

}  // namespace nanovllm
