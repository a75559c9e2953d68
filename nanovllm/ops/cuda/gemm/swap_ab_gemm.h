#pragma once

#include "nanovllm/ops/cuda/attention/rope.h"
#include "nanovllm/ops/cuda/gemm/gemm_args.h"

namespace nanovllm::cuda {

inline constexpr int kSwapAbTokens = 64;  ///< the most

/// What the product that completes a residual [T, n] does of the norm behind it, and the product of
/// that norm takes over:
///   rms_norm(residual) w^T = ((residual * weight) w^T) / rms(residual)
struct NormAhead {
  const float* weight = nullptr;  ///< [n]
  void* x = nullptr;              ///< [T, n]: residual * weight
  float* squares = nullptr;       ///< [num_parts, kSwapAbTokens]: sums of the residual's squares
  int num_parts = 0;              ///< of n, most kMaxNormParts
};
inline constexpr int kMaxNormParts = 128;

/// Whether swap_ab_gemm() has a kernel for a product of 17 to kSwapAbTokens that wins against
/// cuBLASLt and separate row operations. Hopper only; x has its norm already, or is `ahead`'s.
bool is_swap_ab_gemm(const GemmArgs& args, DType dtype);
/// With kAdd `ahead` is written where it has weights, and otherwise read where it has squares.
void swap_ab_gemm(Launch where, const GemmArgs& args, const NormAhead& ahead);
/// The parts in which a product with kAdd writes its squares.
int num_norm_parts(const GemmArgs& args);
/// The same of a product whose out is rope.qkv, with rope_and_store behind it in the same kernel.
bool is_roped_gemm(const GemmArgs& args, DType dtype, const RopeParams& rope);
void roped_gemm(Launch where, const GemmArgs& args, const NormAhead& ahead, const RopeParams& rope);

}  // namespace nanovllm::cuda
