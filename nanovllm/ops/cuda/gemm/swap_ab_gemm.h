#pragma once

#include "nanovllm/ops/cuda/attention/rope.h"
#include "nanovllm/ops/cuda/gemm/gemm_args.h"

namespace nanovllm::cuda {

/// A norm between two GEMMs whose division comes last:
///   rms_norm(residual) w^T = ((residual * weight) w^T) / rms(residual)
/// The GEMM that completes a residual [T, n] writes residual * weight and its share of the squares;
/// the GEMM of the norm multiplies the former and divides in its epilogue.
struct DeferredNorm {
  const float* weight = nullptr;  ///< [n]
  void* x = nullptr;              ///< [T, n]: residual * weight
  float* squares = nullptr;       ///< [num_parts, kSwapAbTokens]: sums of the residual's squares
  int num_parts = 0;              ///< of n, at most kMaxNormParts
};
inline constexpr int kSwapAbTokens = 64;  ///< the most
inline constexpr int kMaxNormParts = 128;

/// Whether swap_ab_gemm() wins against cuBLASLt and separate row operations: 17 to kSwapAbTokens
/// tokens, bfloat16, and weights that a rule finds small enough. Hopper only.
bool is_swap_ab_gemm(Launch where, const GemmArgs& args, DType dtype);
/// x has its norm already, or is that of `norm`. With kAdd `norm` is written where it has weights,
/// and otherwise read where it has squares.
void swap_ab_gemm(Launch where, const GemmArgs& args, const DeferredNorm& norm);
/// The parts in which a GEMM with kAdd writes its squares.
int num_norm_parts(Launch where, const GemmArgs& args);
/// The same of a GEMM whose out is rope.qkv, with rope_and_store in its epilogue.
bool is_roped_gemm(Launch where, const GemmArgs& args, DType dtype, const RopeParams& rope);
void roped_gemm(Launch where, const GemmArgs& args, const DeferredNorm& norm,
                const RopeParams& rope);

}  // namespace nanovllm::cuda
