#pragma once

#include <cstdint>
#include <functional>

#include "nanovllm/base/tensor.h"
#include "nanovllm/ops/communicator.h"

namespace nanovllm {

/// A matrix [rows, columns] of a checkpoint, or a part of one, whose rows are read when a backend
/// asks for them: straight to where it needs them, by as many threads as it likes.
class WeightRows {
 public:
  /// Writes these rows and columns of the whole matrix, dense, to `to`. Any thread, several at
  /// once. Throws UserError where they cannot be read.
  using Read = std::function<void(Range rows, Range columns, void* to)>;

  WeightRows(DType dtype, int64_t num_rows, int64_t num_columns, Read read);
  /// Rows that are in memory, which must stay there. A vector has one column.
  WeightRows(const Tensor& matrix);  // NOLINT(google-explicit-constructor): a tensor is such rows

  DType dtype() const { return dtype_; }
  int64_t num_rows() const { return rows_.count; }
  int64_t num_columns() const { return columns_.count; }
  size_t row_bytes() const { return static_cast<size_t>(columns_.count) * dtype_size(dtype_); }
  WeightRows part(Range rows, Range columns) const;
  /// Rows [first, first + count).
  void read(int64_t first, int64_t count, void* to) const {
    read_({rows_.first + first, count}, columns_, to);
  }

 private:
  DType dtype_;
  Range rows_, columns_;  // of the whole
  Read read_;
};

}  // namespace nanovllm
