#pragma once

#include "nanovllm/ops/cuda/collectives/peers.h"
#include "nanovllm/ops/cuda/gemm/quantized/quantized_gemm.h"

namespace nanovllm::cuda {

/// The arguments of the kernel of quantized_small_gemm().
struct QuantizedSmall {
  GemmArgs args;
  QuantizedWeight weight;
  DeferredNorm norm;
  Peers peers;  // if there are several, the outputs are sent to them
};
/// Calls the kernel for a format. A thread block has one tile of w, or without has_one_tile two,
/// or three. Each format is compiled in a file of its own: small_e4m3.cu, small_int8.cu and
/// small_int4.cu.
template <class Format>
void run_quantized_small(Launch where, const QuantizedSmall& params, bool has_one_tile);
/// The least shared memory that run_quantized_small() needs.
template <class Format>
size_t quantized_small_bytes(const GemmArgs& args, bool has_one_tile);

}  // namespace nanovllm::cuda
