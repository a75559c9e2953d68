#pragma once

#include "nanovllm/ops/cuda/device/runtime.h"

namespace nanovllm::cuda {

/// A row of a box: as many bfloat16 as the 128 bytes of the swizzle hold.
inline constexpr int kBoxColumns = 64, kBoxRowBytes = kBoxColumns * 2;

/// The descriptor of a row-major bfloat16 matrix [rows, k] for TMA copies of boxes [box_rows,
/// kBoxColumns] with the 128-byte swizzle.
inline CUtensorMap tensor_map(const void* data, int64_t rows, int64_t k, int box_rows) {
  static const decltype(&cuTensorMapEncodeTiled) encode =
      driver_function("cuTensorMapEncodeTiled", 12000);
  CUtensorMap map;
  const cuuint64_t shape[] = {static_cast<cuuint64_t>(k), static_cast<cuuint64_t>(rows)};
  const cuuint64_t row_bytes[] = {static_cast<cuuint64_t>(k) * 2};
  const cuuint32_t box[] = {kBoxColumns, static_cast<cuuint32_t>(box_rows)}, steps[] = {1, 1};
  const CUresult result =
      encode(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, const_cast<void*>(data), shape, row_bytes,
             box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
             CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  check_args(result == CUDA_SUCCESS, "tensor_map: the driver refuses the matrix or the box");
  return map;
}

}  // namespace nanovllm::cuda
