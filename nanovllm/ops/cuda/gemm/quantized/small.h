#pragma once

#include "nanovllm/ops/cuda/collectives/peers.h"
#include "nanovllm/ops/cuda/gemm/quantized/quantized_gemm.h"

namespace nanovllm::cuda {

/// What the kernel of quantized_small_gemm() gets.
struct QuantizedSmall {
  GemmArgs args;
  QuantizedWeight weight;
  DeferredNorm norm;
  Peers peers;  // several: the outputs are sent to them
};
/// Calls the kernel for a format. `tiles`: of 16 columns in a thread block, 1 or 2; not for SwiGLU.
/// Each format is compiled in a file of its own: small_e4m3.cu, small_int8.cu and small_int4.cu.
template <class Format>
void run_quantized_small(Launch where, const QuantizedSmall& params, int tiles);

}  // namespace nanovllm::cuda
