#include "nanovllm/ops/weight_rows.h"

#include <algorithm>
#include <cstring>
#include <mutex>
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

WeightRows::WeightRows(int64_t num_rows, int64_t num_columns, std::function<QuantizedMatrix()> load)
    : WeightRows(DType::kF32, num_rows, num_columns, {}) {
  struct Lazy {
    std::function<QuantizedMatrix()> load;
    std::once_flag once;
    std::shared_ptr<const QuantizedMatrix> matrix;
  };
  quantized_ = [lazy = std::make_shared<Lazy>(std::move(load))] {
    std::call_once(lazy->once,
                   [&] { lazy->matrix = std::make_shared<const QuantizedMatrix>(lazy->load()); });
    return lazy->matrix;
  };
  read_ = [quantized = quantized_, num_columns](int64_t first, int64_t count, void* to) {
    const Range rows = {first / num_columns, std::max<int64_t>(count / num_columns, 1)};
    const Range columns = {first % num_columns, std::min(count, num_columns)};
    quantized()->dequantize(rows, columns, static_cast<float*>(to));
  };
}

QuantizedRows WeightRows::quantized() const {
  return {quantized_ ? quantized_() : nullptr, rows_, columns_};
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
