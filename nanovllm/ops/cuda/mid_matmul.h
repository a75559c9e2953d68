#pragma once

#include "nanovllm/ops/cuda/rope.h"
#include "nanovllm/ops/cuda/small_matmul.h"

namespace nanovllm::cuda {

inline constexpr int kMidTokens = 64;  ///< the most

/// What the product that completes a residual [T, n] does of the norm behind it, and the product of
/// that norm takes over:
///   rms_norm(residual) w^T = ((residual * weight) w^T) / rms(residual)
struct NormAhead {
  const float* weight = nullptr;  ///< [n]
  void* x = nullptr;              ///< [T, n]: residual * weight
  float* squares = nullptr;       ///< [num_parts, kMidTokens]: sums of the residual's squares
  int num_parts = 0;              ///< of n, most kMaxNormParts
};
inline constexpr int kMaxNormParts = 128;

/// Whether mid_matmul() has a kernel for a product of 17 to kMidTokens that wins against cuBLASLt
/// and separate row operations. Hopper only; x has its norm already, or is `ahead`'s.
bool is_mid_matmul(const SmallMatmul& args, DType dtype);
/// With kAdd `ahead` is written where it has weights, and otherwise read where it has squares.
void mid_matmul(Launch where, const SmallMatmul& args, const NormAhead& ahead);
/// The parts in which a product with kAdd writes its squares.
int num_norm_parts(const SmallMatmul& args);
/// The same of a product whose out is rope.qkv, with rope_and_store behind it in the same kernel.
bool is_roped_matmul(const SmallMatmul& args, DType dtype, const RopeParams& rope);
void roped_matmul(Launch where, const SmallMatmul& args, const NormAhead& ahead,
                  const RopeParams& rope);

}  // namespace nanovllm::cuda
