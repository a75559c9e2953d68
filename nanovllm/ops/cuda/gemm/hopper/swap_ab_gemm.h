#pragma once

#include "nanovllm/ops/cuda/attention/rope.h"
#include "nanovllm/ops/cuda/gemm/gemm_args.h"

namespace nanovllm::cuda {

/// The fewest and the most tokens of swap_ab_gemm().
inline constexpr int kFewestSwapAbTokens = 9, kSwapAbTokens = kNormTokens;
/// The same for E4M3 by E4M3 where tile_gemm() computes it too, which is faster beyond.
inline constexpr int kE4M3SwapAbTokens = 32;

/// How a GEMM is divided.
struct SwapAbConfig {
  int rows;       // of w in a thread block; with SwiGLU half of them are gates
  int split;      // thread blocks of a cluster, each with a part of k
  int stages;     // of the ring
  int consumers;  // threads that multiply
};

/// Whether swap_ab_gemm() computes this GEMM, and faster than the other kernels: from
/// kFewestSwapAbTokens to kSwapAbTokens tokens, more than kFewTokens with int4, and with SwiGLU if
/// w is not quantized; bfloat16, n and k multiples of 64 (k of 8 with a quantized weight). Unless w
/// is quantized, it must have so few rows that all thread blocks run at the same time; and with
/// SwiGLU, it must be small and x not normed yet. Rotation needs a head_dim of 64 or 128. Hopper
/// only.
bool prefers_swap_ab_gemm(Launch where, const GemmArgs& args, DType dtype);
/// args.x has been normed, or it is norm.x. With kAdd the GEMM begins `norm` if it has a weight;
/// otherwise it finishes `norm` if it has squares.
void swap_ab_gemm(Launch where, const GemmArgs& args, const DeferredNorm& norm);
/// DeferredNorm::num_parts of a norm that this GEMM with kAdd begins.
int num_norm_parts(Launch where, const GemmArgs& args);

}  // namespace nanovllm::cuda
