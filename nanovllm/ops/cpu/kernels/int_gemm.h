#pragma once

#include <cstdint>

#include "nanovllm/ops/cpu/kernels/gemm.h"

namespace nanovllm::cpu {

/// Groups of a weight, and k rounded up, are multiples of kIntGroup. GemmCall::x_group, the number
/// of columns of x that share a scale, is kIntGroup too, or kLargeIntGroup if they are multiples of
/// that: integer sums are converted and scaled once for each x_group, so larger is faster.
constexpr int64_t kIntGroup = 32, kLargeIntGroup = 128;
/// Rows of x that kernels may read behind the last one, because AMX takes 16 at once.
constexpr int64_t kMoreRows = 15;

/// out [m, n] = x [m, k] w^T + bias, where x is quantized to 16 bits, with errors far below those
/// of rounding the largest value of a group to bfloat16, and w is (value - zero) * scale with
/// unsigned values of 8 or 4 bits.
///
/// A panel has, for each group of k, the values, the scales [columns] float32 and the zero points
/// [columns], one byte each. The values of a group are [count / 4, columns, 4] or, with 4 bits,
/// [count / 8, columns, 4]: the low halves of the bytes are the first four of eight values. k is
/// rounded up to a multiple of kIntGroup, which may cut the last group short.
///
/// A row of x (GemmCall::x_stride is in bytes) has the values, then a scale for each x_group of
/// them, and then for each x_group the sum of its values times the scale, float32. Memory of
/// kMoreRows rows follows, whose contents do not matter.
struct IntGemmKernels {
  /// The kernels for weights of 8 and of 4 bits.
  GemmKernel int8, int4;
  int64_t x_value_bytes;
  /// Makes a row of x out of k elements of the model's dtype: element i is x[i] or, with `order`,
  /// x[order[i]]. If an element of a group is not finite, the group's scale is NaN. `group` is
  /// GemmCall::x_group.
  void (*quantize_row)(void* row, const void* x, const int32_t* order, int64_t k, int64_t group);
};

}  // namespace nanovllm::cpu
