#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "nanovllm/base/tensor.h"
#include "nanovllm/ops/quantized.h"
#include "nanovllm/ops/rows.h"

namespace nanovllm {

/// A matrix [rows, columns] of a checkpoint, or a part of one. Its rows are read only when a
/// backend requests them, directly to where the backend needs them, and by as many threads as it
/// likes.
class WeightRows {
 public:
  /// Writes `count` consecutive elements of the whole matrix (row-major), starting with element
  /// `first`, to `to`. Several threads may call it at the same time. Throws UserError if the
  /// elements cannot be read.
  using Read = std::function<void(int64_t first, int64_t count, void* to)>;

  WeightRows(DType dtype, int64_t num_rows, int64_t num_columns, Read read);
  /// The rows of a matrix in host memory, which must outlive this. A vector has one column.
  WeightRows(const Tensor& matrix);  // NOLINT(google-explicit-constructor): it is a view of them
  /// A quantized matrix, which `load` reads when it is first needed. It is a float32 matrix for
  /// those who do not ask for quantized().
  WeightRows(int64_t num_rows, int64_t num_columns, std::function<QuantizedMatrix()> load);

  DType dtype() const { return dtype_; }
  int64_t num_rows() const { return rows_.count; }
  int64_t num_columns() const { return columns_.count; }
  size_t row_bytes() const { return static_cast<size_t>(columns_.count) * dtype_size(dtype_); }
  WeightRows part(Range rows, Range columns) const;
  /// Writes rows [first, first + count) to `to`, without gaps.
  void read(int64_t first, int64_t count, void* to) const;
  /// The same part of the quantized matrix; its `matrix` is null if this one is not quantized.
  QuantizedRows quantized() const;

 private:
  DType dtype_;
  int64_t row_stride_;    // elements from row to row of the whole matrix
  Range rows_, columns_;  // of the whole matrix
  Read read_;
  std::function<std::shared_ptr<const QuantizedMatrix>()> quantized_;
};

}  // namespace nanovllm
