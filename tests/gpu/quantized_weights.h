#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "nanovllm/base/dtype.h"
#include "nanovllm/ops/weight_rows.h"

namespace nanovllm {

/// A kind of quantized weights.
struct QuantizedKind {
  QuantizedFormat format;
  int64_t scale_rows, scale_columns;  // 0: all
  bool has_zeros = false;
  bool quantizes_activations = false;
};

inline std::string name_of(const QuantizedKind& kind) {
  constexpr const char* kNames[] = {"E4M3", "int8", "int4"};
  return fmt::format("{}, scales of {} x {}{}{}", kNames[static_cast<size_t>(kind.format)],
                     kind.scale_rows, kind.scale_columns, kind.has_zeros ? ", zero points" : "",
                     kind.quantizes_activations ? ", activations too" : "");
}

/// A weight whose value at a row and a column is value(row, column), and whose scales and zero
/// points come from scale() and zero().
inline WeightRows quantized_weight(const QuantizedKind& kind, int64_t n, int64_t k,
                                   const std::function<uint8_t(int64_t, int64_t)>& value,
                                   const std::function<float()>& scale,
                                   const std::function<int()>& zero = {}) {
  QuantizedMatrix m{.format = kind.format,
                    .num_rows = n,
                    .num_columns = k,
                    .scale_rows = kind.scale_rows > 0 ? kind.scale_rows : n,
                    .scale_columns = kind.scale_columns > 0 ? kind.scale_columns : k};
  for (int64_t i = 0; i < m.num_scales(); ++i) {
    m.scales.push_back(scale());
    if (kind.has_zeros) m.zeros.push_back(static_cast<int16_t>(zero()));
  }
  m.quantizes_activations = kind.quantizes_activations;
  auto values = std::make_shared<std::vector<uint8_t>>();
  for (int64_t row = 0; row < n; ++row)
    for (int64_t column = 0; column < k; ++column) values->push_back(value(row, column));
  m.values = [values, k](Range rows, Range columns, uint8_t* to) {
    for (int64_t row = 0; row < rows.count; ++row)
      to = std::copy_n(values->data() + (rows.first + row) * k + columns.first, columns.count, to);
  };
  return {n, k, [m] { return m; }};
}

/// What numbers the scales are. Checkpoints have bfloat16 or float16. With powers of two all
/// weights are exact in bfloat16 too.
enum class Scales { kBf16, kF16, kPowersOfTwo };

/// A weight with random values, whose standard deviation is about `deviation`.
inline WeightRows random_quantized(const QuantizedKind& kind, int64_t n, int64_t k, float deviation,
                                   std::mt19937& random, Scales scales = Scales::kBf16) {
  const bool is_e4m3 = kind.format == QuantizedFormat::kE4M3;
  const bool is_int4 = kind.format == QuantizedFormat::kInt4;
  std::uniform_real_distribution<float> factor(0.5f, 2);
  std::uniform_int_distribution<int> zero(is_int4 ? 4 : 100, is_int4 ? 11 : 160);
  // The deviation of a value minus its zero point, and of `factor`.
  const float typical = is_e4m3 ? 8.0f : !is_int4 ? 75.0f : kind.has_zeros ? 5.15f : 4.6f;
  constexpr float kFactor = 1.32f;
  std::normal_distribution<float> normal(0, 8);
  const auto value = [&](int64_t, int64_t) {
    return is_e4m3 ? f32_to_e4m3(normal(random))
                   : static_cast<uint8_t>(random() & (is_int4 ? 15 : 255));
  };
  const auto scale = [&] {
    const float x = deviation / (typical * kFactor) * factor(random);
    if (scales == Scales::kPowersOfTwo) return std::exp2(std::round(std::log2(x)));
    return scales == Scales::kF16 ? f16_to_f32(f32_to_f16(x)) : bf16_to_f32(f32_to_bf16(x));
  };
  return quantized_weight(kind, n, k, value, scale, [&] { return zero(random); });
}

/// The same weights without their quantized form, for the CPU.
inline std::vector<WeightRows> as_floats(std::span<const WeightRows> parts) {
  std::vector<WeightRows> out;
  for (const WeightRows& part : parts) {
    if (part.quantized().matrix == nullptr) out.push_back(part);
    else
      out.emplace_back(DType::kF32, part.num_rows(), part.num_columns(),
                       [part](int64_t first, int64_t count, void* to) {
                         part.read(first / part.num_columns(), count / part.num_columns(), to);
                       });
  }
  return out;
}

}  // namespace nanovllm
