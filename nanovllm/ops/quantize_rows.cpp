#include "nanovllm/ops/quantize_rows.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "nanovllm/base/check.h"

namespace nanovllm {

namespace {

/// Calls use(row, elements) for each row, a few of which are read at a time.
template <class Use>
void for_each_row(const WeightRows& matrix, Range rows, Use use) {
  constexpr int64_t kRows = 16;
  const int64_t k = matrix.num_columns();
  std::vector<char> bytes(static_cast<size_t>(kRows) * matrix.row_bytes());
  std::vector<float> elements(static_cast<size_t>(k));
  for (int64_t first = 0; first < rows.count; first += kRows) {
    const int64_t count = std::min(kRows, rows.count - first);
    matrix.read(rows.first + first, count, bytes.data());
    for (int64_t r = 0; r < count; ++r) {
      const void* const row = bytes.data() + static_cast<size_t>(r) * matrix.row_bytes();
      const auto* const halves = static_cast<const uint16_t*>(row);
      if (matrix.dtype() == DType::kF32)
        std::copy_n(static_cast<const float*>(row), k, elements.begin());
      else
        std::transform(halves, halves + k, elements.begin(),
                       matrix.dtype() == DType::kBF16 ? bf16_to_f32 : f16_to_f32);
      use(rows.first + first + r, elements);
    }
  }
}

}  // namespace

WeightRows quantize_rows(const WeightRows& matrix, QuantizedFormat format) {
  check(format != QuantizedFormat::kInt4, "4 bits need groups");
  const int64_t n = matrix.num_rows(), k = matrix.num_columns();
  return {n, k, [=] {
            QuantizedMatrix m{
                .format = format, .num_rows = n, .num_columns = k, .scale_columns = k};
            m.scales.resize(static_cast<size_t>(n));
            for_each_row(matrix, {0, n}, [&](int64_t row, const std::vector<float>& elements) {
              float most = 0;
              for (const float x : elements) most = std::max(most, std::fabs(x));
              m.scales[static_cast<size_t>(row)] =
                  most / (format == QuantizedFormat::kE4M3 ? 448 : 127);
            });
            m.values = [=, scales = m.scales](Range rows, Range columns, uint8_t* to) {
              for_each_row(matrix, rows, [&](int64_t row, const std::vector<float>& elements) {
                const float scale = scales[static_cast<size_t>(row)];
                for (int64_t c = columns.first; c < columns.first + columns.count; ++c) {
                  const float x = scale > 0 ? elements[static_cast<size_t>(c)] / scale : 0;
                  *to++ = format == QuantizedFormat::kE4M3
                              ? f32_to_e4m3(x)
                              : static_cast<uint8_t>(128 + static_cast<int>(std::nearbyint(x)));
                }
              });
            };
            return m;
          }};
}

}  // namespace nanovllm
