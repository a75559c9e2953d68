#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "nanovllm/model/model_config.h"

namespace nanovllm {

/// The angle by which each pair of a head turns from one position to the next, [head_dim / 2], in
/// float32 as transformers computes it. Sources: Su et al., "RoFormer", 2021; the scalings of
/// transformers' modeling_rope_utils.py.
std::vector<float> rope_frequencies(const RopeConfig& rope, int64_t head_dim);

/// Cosines and sines of position * frequency, [num_positions, head_dim / 2] each, from position
/// `first` on.
struct RopeTables {
  std::vector<float> cos, sin;
};
RopeTables rope_tables(const RopeConfig& rope, int64_t head_dim, int64_t num_positions,
                       int64_t first = 0);

/// Bytes of both tables for one position.
inline size_t rope_bytes_per_position(int64_t head_dim) {
  return static_cast<size_t>(head_dim) * sizeof(float);
}

}  // namespace nanovllm
