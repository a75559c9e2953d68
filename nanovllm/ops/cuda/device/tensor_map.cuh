#pragma once

#include "nanovllm/ops/cuda/device/runtime.h"

namespace nanovllm::cuda {

/// The columns of a row of a box: as many bfloat16 as the 128 bytes of the swizzle hold.
inline constexpr int kBoxColumns = 64, kBoxRowBytes = kBoxColumns * 2;

/// A row-major matrix for TMA copies of boxes. Rows begin row_bytes apart; this and the address are
/// multiples of 16.
struct BoxedMatrix {
  const void* data;
  CUtensorMapDataType type;
  int64_t rows, columns, row_bytes;
  int box_rows, box_columns;
  CUtensorMapSwizzle swizzle;
};
inline CUtensorMap tensor_map(const BoxedMatrix& m) {
  static const decltype(&cuTensorMapEncodeTiled) encode =
      driver_function("cuTensorMapEncodeTiled", 12000);
  CUtensorMap map;
  const cuuint64_t shape[] = {static_cast<cuuint64_t>(m.columns), static_cast<cuuint64_t>(m.rows)};
  const cuuint64_t row_bytes[] = {static_cast<cuuint64_t>(m.row_bytes)};
  const cuuint32_t box[] = {static_cast<cuuint32_t>(m.box_columns),
                            static_cast<cuuint32_t>(m.box_rows)};
  const cuuint32_t steps[] = {1, 1};
  const CUresult result =
      encode(&map, m.type, 2, const_cast<void*>(m.data), shape, row_bytes, box, steps,
             CU_TENSOR_MAP_INTERLEAVE_NONE, m.swizzle, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
             CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  check_args(result == CUDA_SUCCESS, "tensor_map: the driver refuses the matrix or the box");
  return map;
}

/// The descriptor of a row-major bfloat16 matrix [rows, k] for TMA copies of boxes [box_rows,
/// kBoxColumns] with the 128-byte swizzle.
inline CUtensorMap tensor_map(const void* data, int64_t rows, int64_t k, int box_rows) {
  return tensor_map({.data = data,
                     .type = CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
                     .rows = rows,
                     .columns = k,
                     .row_bytes = k * 2,
                     .box_rows = box_rows,
                     .box_columns = kBoxColumns,
                     .swizzle = CU_TENSOR_MAP_SWIZZLE_128B});
}
/// The descriptor of a matrix of bytes [rows, k], whose rows begin row_bytes apart, for TMA copies
/// of boxes [box_rows, kBoxRowBytes] with the 128-byte swizzle.
inline CUtensorMap byte_tensor_map(const void* data, int64_t rows, int64_t k, int64_t row_bytes,
                                   int box_rows) {
  return tensor_map({.data = data,
                     .type = CU_TENSOR_MAP_DATA_TYPE_UINT8,
                     .rows = rows,
                     .columns = k,
                     .row_bytes = row_bytes,
                     .box_rows = box_rows,
                     .box_columns = kBoxRowBytes,
                     .swizzle = CU_TENSOR_MAP_SWIZZLE_128B});
}

}  // namespace nanovllm::cuda
