#include <algorithm>
#include <cmath>

#include "nanovllm/base/check.h"
#include "nanovllm/checkpoint/quantized/dialect.h"

namespace nanovllm {

namespace {

/// The number of rows that are read at once.
constexpr int64_t kRows = 64;

/// Calls visit(row, values) for each row of a range.
template <class Visit>
void for_rows(const WeightRows& weight, const Visit& visit) {
  for (int64_t first = 0; first < weight.num_rows(); first += kRows) {
    const int64_t count = std::min(kRows, weight.num_rows() - first);
    const std::vector<float> values =
        read_floats(weight.part({first, count}, {0, weight.num_columns()}));
    for (int64_t row = 0; row < count; ++row)
      visit(first + row, values.data() + row * weight.num_columns());
  }
}

/// Quantizes a weight with a scale for each row, so that the row's largest value becomes the
/// largest one of the format.
QuantizedMatrix quantize(const WeightRows& weight, QuantizedFormat format) {
  const bool is_float = format == QuantizedFormat::kE4M3;
  const float most = is_float ? 448 : 127;
  QuantizedMatrix m{.format = format,
                    .num_rows = weight.num_rows(),
                    .num_columns = weight.num_columns(),
                    .scale_columns = weight.num_columns(),
                    .quantizes_activations = is_float};
  for_rows(weight, [&](int64_t, const float* row) {
    float largest = 0;
    for (int64_t i = 0; i < m.num_columns; ++i) largest = std::max(largest, std::fabs(row[i]));
    m.scales.push_back(largest > 0 ? largest / most : 1);
  });
  m.values = [weight, is_float, scales = m.scales](Range rows, Range columns, uint8_t* to) {
    for_rows(weight.part(rows, columns), [&](int64_t row, const float* values) {
      const float scale = scales[static_cast<size_t>(rows.first + row)];
      uint8_t* const out = to + row * columns.count;
      if (is_float) {
        for (int64_t i = 0; i < columns.count; ++i) out[i] = f32_to_e4m3(values[i] / scale);
      } else {
        for (int64_t i = 0; i < columns.count; ++i)
          out[i] = static_cast<uint8_t>(128 + std::nearbyint(values[i] / scale));
      }
    });
  };
  return m;
}

}  // namespace

Quantization quantization_at_load(const std::string& format, bool vocabulary) {
  const auto quantized = format == "fp8" ? QuantizedFormat::kE4M3 : QuantizedFormat::kInt8;
  return {fmt::format("{} made at load, a scale for each row", format),
          [=](TensorSource& tensors, const std::string& module, int64_t rows,
              int64_t columns) -> std::optional<WeightRows> {
            const bool is_vocabulary = module == "lm_head" || module == "model.embed_tokens";
            if (!is_linear(module) && !(vocabulary && is_vocabulary)) return std::nullopt;
            const WeightRows weight = tensors.take(module + ".weight", {rows, columns});
            return WeightRows(rows, columns, [=] { return quantize(weight, quantized); });
          },
          {}};
}

}  // namespace nanovllm
