#include "nanovllm/model/rope.h"

#include <cmath>
#include <numbers>

namespace nanovllm {

namespace {

// Frequencies with fewer than low_freq_factor rotations in the original context are divided by
// `factor`, those with more than high_freq_factor rotations stay as they are, and those between are
// interpolated.
float llama3_frequency(const RopeConfig& rope, float frequency) {
  const auto original = static_cast<float>(rope.original_max_position_embeddings);
  const auto low = static_cast<float>(rope.low_freq_factor);
  const auto high = static_cast<float>(rope.high_freq_factor);
  const auto factor = static_cast<float>(rope.factor);
  const float wavelength = 2 * std::numbers::pi_v<float> / frequency;
  if (wavelength < original / high) return frequency;
  if (wavelength > original / low) return frequency / factor;
  const float smooth = (original / wavelength - low) / (high - low);
  return (1 - smooth) * (frequency / factor) + smooth * frequency;
}

}  // namespace

std::vector<float> rope_frequencies(const RopeConfig& rope, int64_t head_dim) {
  std::vector<float> frequencies(static_cast<size_t>(head_dim / 2));
  for (size_t i = 0; i < frequencies.size(); ++i) {
    const float exponent = static_cast<float>(2 * i) / static_cast<float>(head_dim);
    float& frequency = frequencies[i];
    frequency = 1 / std::pow(static_cast<float>(rope.theta), exponent);
    if (rope.scaling == RopeConfig::Scaling::kLinear) frequency /= static_cast<float>(rope.factor);
    if (rope.scaling == RopeConfig::Scaling::kLlama3) frequency = llama3_frequency(rope, frequency);
  }
  return frequencies;
}

RopeTables rope_tables(const RopeConfig& rope, int64_t head_dim, int64_t num_positions,
                       int64_t first) {
  const std::vector<float> frequencies = rope_frequencies(rope, head_dim);
  RopeTables tables;
  tables.cos.reserve(static_cast<size_t>(num_positions) * frequencies.size());
  tables.sin.reserve(tables.cos.capacity());
  for (int64_t position = first; position < first + num_positions; ++position) {
    for (const float frequency : frequencies) {
      const float angle = static_cast<float>(position) * frequency;
      tables.cos.push_back(std::cos(angle));
      tables.sin.push_back(std::sin(angle));
    }
  }
  return tables;
}

}  // namespace nanovllm
