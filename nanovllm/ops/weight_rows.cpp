#include "nanovllm/ops/weight_rows.h"

#include <cstring>
#include <utility>

namespace nanovllm {

WeightRows::WeightRows(DType dtype, int64_t num_rows, int64_t num_columns, Read read)
    : dtype_(dtype), rows_{0, num_rows}, columns_{0, num_columns}, read_(std::move(read)) {}

WeightRows::WeightRows(const Tensor& matrix)
    : WeightRows(matrix.dtype, matrix.shape[0], matrix.shape[1],
                 [matrix](Range rows, Range columns, void* to) {
                   const auto size = static_cast<int64_t>(dtype_size(matrix.dtype));
                   for (int64_t i = 0; i < rows.count; ++i)
                     std::memcpy(static_cast<char*>(to) + i * columns.count * size,
                                 matrix.rows(rows.first + i, 1).as<char>() + columns.first * size,
                                 static_cast<size_t>(columns.count * size));
                 }) {}

WeightRows WeightRows::part(Range rows, Range columns) const {
  WeightRows out = *this;
  out.rows_ = {rows_.first + rows.first, rows.count};
  out.columns_ = {columns_.first + columns.first, columns.count};
  return out;
}

}  // namespace nanovllm
