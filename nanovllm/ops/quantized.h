#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "nanovllm/ops/rows.h"

namespace nanovllm {

/// How a quantized matrix stores its values. All dialects of checkpoints end in one of these.
enum class QuantizedFormat : uint8_t {
  kE4M3,  ///< as DType::kE4M3
  kInt8,  ///< integers from 0 to 255
  kInt4,  ///< integers from 0 to 15
};

/// A GPU keeps values whose groups of columns, and whose part's first column, are multiples of this
/// power of two. It makes floats of all others.
constexpr int64_t least_gpu_group(QuantizedFormat format) {
  return format == QuantizedFormat::kE4M3 ? 128 : 32;
}

/// A matrix [num_rows, num_columns] whose element is (value - zero point) * scale, exactly so in
/// float32. A scale and a zero point belong to a block of scale_rows rows times scale_columns
/// columns; the last blocks may be cut short. Examples are 1 x 128 (groups), 128 x 128 (blocks), 1
/// x num_columns (rows).
struct QuantizedMatrix {
  QuantizedFormat format = QuantizedFormat::kE4M3;
  int64_t num_rows = 0, num_columns = 0;
  int64_t scale_rows = 1, scale_columns = 1;
  std::vector<float> scales = {};  ///< [blocks of rows, groups of columns]
  std::vector<int16_t> zeros =
      {};  ///< the same for integers; none: half of their range. E4M3 has none
  /// [num_columns] the group of each column, if groups are not consecutive columns (activation
  /// order).
  std::vector<int32_t> groups = {};
  /// The checkpoint was made for activations that are quantized too, by token.
  bool quantizes_activations = false;
  /// Writes the values of these rows and columns to `to`, a byte each, row by row. Several threads
  /// may call it. Some dialects store columns together: they are fast if there are many rows.
  std::function<void(Range rows, Range columns, uint8_t* to)> values = {};

  float scale(int64_t row, int64_t column) const { return scales[block_of(row, column)]; }
  int zero(int64_t row, int64_t column) const {
    if (!zeros.empty()) return zeros[block_of(row, column)];
    return format == QuantizedFormat::kInt8 ? 128 : format == QuantizedFormat::kInt4 ? 8 : 0;
  }
  /// Writes the elements of these rows and columns to `to`, row by row.
  void dequantize(Range rows, Range columns, float* to) const;

  int64_t num_groups() const;
  /// Number of blocks of rows times num_groups().
  int64_t num_scales() const;

 private:
  size_t block_of(int64_t row, int64_t column) const {
    const int64_t group =
        groups.empty() ? column / scale_columns : groups[static_cast<size_t>(column)];
    return static_cast<size_t>(row / scale_rows * num_groups() + group);
  }
};

/// A part of a quantized matrix.
struct QuantizedRows {
  std::shared_ptr<const QuantizedMatrix> matrix;  ///< none: the weight is not quantized
  Range rows, columns;                            ///< of the whole matrix
};

}  // namespace nanovllm
