#pragma once

#include <cuda.h>

#include "nanovllm/ops/cuda/gemm/swap_ab_block.cuh"

// What the two swap-AB kernels for quantized weights share on the host.
namespace nanovllm::cuda {

/// The descriptor of the bytes [rows, row_bytes] for copies of boxes [box_rows, box_bytes], with
/// the 128-byte swizzle if `swizzles`.
inline CUtensorMap byte_map(const void* data, int64_t rows, int64_t row_bytes, int box_rows,
                            int box_bytes, bool swizzles) {
  static const decltype(&cuTensorMapEncodeTiled) encode =
      driver_function("cuTensorMapEncodeTiled", 12000);
  CUtensorMap map;
  const cuuint64_t shape[] = {static_cast<cuuint64_t>(row_bytes), static_cast<cuuint64_t>(rows)};
  const cuuint64_t strides[] = {static_cast<cuuint64_t>(row_bytes)};
  const cuuint32_t box[] = {static_cast<cuuint32_t>(box_bytes), static_cast<cuuint32_t>(box_rows)};
  const cuuint32_t steps[] = {1, 1};
  const CUresult result =
      encode(&map, CU_TENSOR_MAP_DATA_TYPE_UINT8, 2, const_cast<void*>(data), shape, strides, box,
             steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
             swizzles ? CU_TENSOR_MAP_SWIZZLE_128B : CU_TENSOR_MAP_SWIZZLE_NONE,
             CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  check_args(result == CUDA_SUCCESS, "byte_map: the driver refuses the matrix or the box");
  return map;
}

/// Bytes of a ring: two thread blocks fit on a multiprocessor. A ring of 200 KB where there is only
/// one is slower, because then the next kernel cannot start early (8B in E4M3, 64 sequences: 5.08
/// instead of 4.47 ms a step).
inline constexpr int kByteRing = 100 << 10;
/// The largest split-K factor with which all thread blocks are resident together, two on a
/// multiprocessor. Clusters of four or more do not fill every group of multiprocessors.
inline int find_byte_split(Launch where, int tiles, int num_chunks) {
  int split = 1;
  for (int more = 2; more <= swap_ab::kMaxSplit; more *= 2) {
    const int usable = 2 * (more <= 2 ? where.num_sms : where.num_sms * 6 / 7);
    if (num_chunks >= 4 * more && tiles * more <= usable) split = more;
  }
  return split;
}

}  // namespace nanovllm::cuda
