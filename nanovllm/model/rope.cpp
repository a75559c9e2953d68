#include "nanovllm/model/rope.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "nanovllm/base/to_size.h"

namespace nanovllm {

namespace {

// Frequencies with fewer than low_freq_factor rotations in the original context are divided by
// `factor`, those with more than high_freq_factor stay as they are, those between are interpolated.
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

/// The dimensions between which yarn interpolates. Frequencies of dimensions before `low` stay as
/// they are, those from low + width on are divided by `factor`. At these limits a pair rotates
/// beta_fast and beta_slow times in the original context.
struct YarnRamp {
  float low = 0, width = 1;
};

YarnRamp yarn_ramp(const RopeConfig& rope, int64_t head_dim) {
  const auto dimension = [&](double num_rotations) {
    return static_cast<double>(head_dim) *
           std::log(rope.original_max_position_embeddings /
                    (num_rotations * 2 * std::numbers::pi)) /
           (2 * std::log(rope.theta));
  };
  double low = dimension(rope.beta_fast), high = dimension(rope.beta_slow);
  if (rope.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, static_cast<double>(head_dim - 1));
  return {static_cast<float>(low), static_cast<float>(low == high ? 0.001 : high - low)};
}

}  // namespace

std::vector<float> rope_frequencies(const RopeConfig& rope, int64_t head_dim) {
  std::vector<float> frequencies(to_size(head_dim / 2));
  if (rope.is_identity) return frequencies;
  const bool is_yarn = rope.scaling == RopeConfig::Scaling::kYarn;
  const YarnRamp ramp = is_yarn ? yarn_ramp(rope, head_dim) : YarnRamp();
  const auto factor = static_cast<float>(rope.factor);
  for (size_t i = 0; i < frequencies.size(); ++i) {
    const float exponent = static_cast<float>(2 * i) / static_cast<float>(head_dim);
    const float power = std::pow(static_cast<float>(rope.theta), exponent);
    float& frequency = frequencies[i];
    frequency = 1 / power;
    if (rope.scaling == RopeConfig::Scaling::kLinear) frequency /= factor;
    if (rope.scaling == RopeConfig::Scaling::kLlama3) frequency = llama3_frequency(rope, frequency);
    if (is_yarn) {
      const float divided = std::clamp((static_cast<float>(i) - ramp.low) / ramp.width, 0.0f, 1.0f);
      const float kept = 1 - divided;
      frequency = 1 / (factor * power) * (1 - kept) + 1 / power * kept;
    }
  }
  return frequencies;
}

RopeTables rope_tables(const RopeConfig& rope, int64_t head_dim, int64_t num_positions,
                       int64_t first) {
  const std::vector<float> frequencies = rope_frequencies(rope, head_dim);
  const auto scale = static_cast<float>(rope.attention_factor);
  RopeTables tables;
  tables.cos.reserve(to_size(num_positions) * frequencies.size());
  tables.sin.reserve(tables.cos.capacity());
  for (int64_t position = first; position < first + num_positions; ++position) {
    for (const float frequency : frequencies) {
      const float angle = static_cast<float>(position) * frequency;
      tables.cos.push_back(std::cos(angle) * scale);
      tables.sin.push_back(std::sin(angle) * scale);
    }
  }
  return tables;
}

}  // namespace nanovllm
