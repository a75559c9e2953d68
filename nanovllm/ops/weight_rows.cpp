#include "nanovllm/ops/weight_rows.h"

#include <cstring>
#include <utility>

#include "nanovllm/base/check.h"

namespace nanovllm {

WeightRows::WeightRows(DType dtype, int64_t num_rows, int64_t num_columns, Read read)
    : dtype_(dtype),
      row_stride_(num_columns),
      rows_{0, num_rows},
      columns_{0, num_columns},
      read_(std::move(read)) {}

WeightRows::WeightRows(const Tensor& matrix)
    : WeightRows(matrix.dtype, matrix.shape[0], matrix.shape[1],
                 [matrix](int64_t first, int64_t count, void* to) {
                   const size_t size = dtype_size(matrix.dtype);
                   std::memcpy(to, matrix.as<char>() + static_cast<size_t>(first) * size,
                               static_cast<size_t>(count) * size);
                 }) {
  row_stride_ = matrix.row_stride;
}

WeightRows WeightRows::part(Range rows, Range columns) const {
  WeightRows out = *this;
  out.rows_ = {rows_.first + rows.first, rows.count};
  out.columns_ = {columns_.first + columns.first, columns.count};
  return out;
}

void WeightRows::read(int64_t first, int64_t count, void* to) const {
  const int64_t start = (rows_.first + first) * row_stride_ + columns_.first;
  if (columns_.count == row_stride_) return read_(start, count * row_stride_, to);
  for (int64_t i = 0; i < count; ++i)
    read_(start + i * row_stride_, columns_.count,
          static_cast<char*>(to) + static_cast<size_t>(i) * row_bytes());
}

}  // namespace nanovllm
