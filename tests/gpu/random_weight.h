#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "nanovllm/base/dtype.h"
#include "nanovllm/ops/weight_rows.h"

// Quantized weights with random values, for the tests that compare with their floats.
namespace nanovllm {

struct Kind {
  QuantizedFormat format;
  int64_t scale_rows, scale_columns;  // 0: all
  bool has_zeros = false;
  bool quantizes_activations = false;
};

inline std::string name_of(const Kind& kind) {
  constexpr const char* kNames[] = {"E4M3", "int8", "int4"};
  return fmt::format("{}, scales of {} x {}{}{}", kNames[static_cast<size_t>(kind.format)],
                     kind.scale_rows, kind.scale_columns, kind.has_zeros ? ", zero points" : "",
                     kind.quantizes_activations ? ", activations too" : "");
}

/// A weight with random values, of about `deviation`.
inline WeightRows random_weight(const Kind& kind, int64_t n, int64_t k, float deviation,
                                std::mt19937& random) {
  QuantizedMatrix m{.format = kind.format,
                    .num_rows = n,
                    .num_columns = k,
                    .scale_rows = kind.scale_rows > 0 ? kind.scale_rows : n,
                    .scale_columns = kind.scale_columns > 0 ? kind.scale_columns : k};
  const bool is_e4m3 = kind.format == QuantizedFormat::kE4M3;
  const bool is_int4 = kind.format == QuantizedFormat::kInt4;
  std::uniform_real_distribution<float> factor(0.5f, 2);
  std::uniform_int_distribution<int> zero(is_int4 ? 4 : 100, is_int4 ? 11 : 160);
  const float typical = is_e4m3 ? 8 : is_int4 ? 4 : 70;  // of a value
  for (int64_t i = 0; i < m.num_scales(); ++i) {
    // As checkpoints have them, in bfloat16.
    m.scales.push_back(bf16_to_f32(f32_to_bf16(deviation / typical * factor(random))));
    if (kind.has_zeros) m.zeros.push_back(static_cast<int16_t>(zero(random)));
  }
  m.quantizes_activations = kind.quantizes_activations;
  auto values = std::make_shared<std::vector<uint8_t>>(static_cast<size_t>(n * k));
  std::normal_distribution<float> normal(0, typical);
  for (uint8_t& value : *values)
    value = is_e4m3 ? f32_to_e4m3(normal(random))
                    : static_cast<uint8_t>(random() & (is_int4 ? 15 : 255));
  m.values = [values, k](Range rows, Range columns, uint8_t* to) {
    for (int64_t row = 0; row < rows.count; ++row)
      to = std::copy_n(values->data() + (rows.first + row) * k + columns.first, columns.count, to);
  };
  return {n, k, [m] { return m; }};
}

}  // namespace nanovllm
