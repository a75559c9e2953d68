#pragma once

#include "nanovllm/ops/cuda/attention/rope.h"
#include "nanovllm/ops/cuda/gemm/gemm_args.h"

namespace nanovllm::cuda {

/// The fewest and the most tokens of swap_ab_gemm().
inline constexpr int kFewestSwapAbTokens = 9, kSwapAbTokens = kNormTokens;
/// The most tokens of swap_ab_gemm() with E4M3 by E4M3 if tile_gemm() supports the weight too,
/// since tile_gemm() is faster with more.
inline constexpr int kE4M3SwapAbTokens = 32;

/// How a GEMM is divided.
struct SwapAbConfig {
  int rows;       // rows of w of a thread block; with SwiGLU half of them are gates
  int split;      // thread blocks of a cluster, each with a part of k
  int stages;     // stages of the ring
  int consumers;  // threads that multiply
};

/// Whether swap_ab_gemm() computes this GEMM, and faster than the other kernels: from
/// kFewestSwapAbTokens to kSwapAbTokens tokens, more than kFewTokens with int4, and with SwiGLU if
/// w is not quantized; bfloat16, n and k multiples of 64 (k of 8 with a quantized weight). Unless w
/// is quantized, it must have so few rows that all thread blocks run at the same time; and with
/// SwiGLU, it must be small and x not normed yet. Rotation needs a head_dim of 64 or 128. Hopper
/// only.
bool prefers_swap_ab_gemm(Launch where, const GemmArgs& args, DType dtype);
/// Computes the GEMM. args.x has been normed, or it is norm.x. With kAdd the GEMM begins `norm` if
/// that has a weight; with another epilogue it finishes `norm` if that has squares.
void swap_ab_gemm(Launch where, const GemmArgs& args, const DeferredNorm& norm);
/// The number of parts (DeferredNorm::num_parts) of a norm that this GEMM with kAdd begins.
int num_norm_parts(Launch where, const GemmArgs& args);

}  // namespace nanovllm::cuda
