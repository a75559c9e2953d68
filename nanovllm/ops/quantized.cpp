#include "nanovllm/ops/quantized.h"

#include <algorithm>

#include "nanovllm/base/ceil_div.h"
#include "nanovllm/base/dtype.h"

namespace nanovllm {

int64_t QuantizedMatrix::num_groups() const { return ceil_div(num_columns, scale_columns); }

int64_t QuantizedMatrix::num_scales() const {
  return ceil_div(num_rows, scale_rows) * num_groups();
}

void QuantizedMatrix::dequantize(Range part_rows, Range part_columns, float* to) const {
  // Enough rows for the dialects that store columns together.
  constexpr int64_t kRows = 64;
  std::vector<uint8_t> bytes(static_cast<size_t>(kRows * part_columns.count));
  const int64_t end = part_columns.first + part_columns.count;
  for (int64_t first = 0; first < part_rows.count; first += kRows) {
    const Range some = {part_rows.first + first, std::min(kRows, part_rows.count - first)};
    values(some, part_columns, bytes.data());
    const uint8_t* from = bytes.data();
    for (int64_t row = some.first; row < some.first + some.count; ++row) {
      for (int64_t column = part_columns.first; column < end;) {
        const float s = scale(row, column);
        const int z = zero(row, column);
        // The columns until the next scale.
        const int64_t stop = groups.empty()
                                 ? std::min(end, (column / scale_columns + 1) * scale_columns)
                                 : column + 1;
        if (format == QuantizedFormat::kE4M3)
          for (; column < stop; ++column) *to++ = e4m3_to_f32(*from++) * s;
        else
          for (; column < stop; ++column) *to++ = static_cast<float>(*from++ - z) * s;
      }
    }
  }
}

}  // namespace nanovllm
