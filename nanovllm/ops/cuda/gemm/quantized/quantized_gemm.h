#pragma once

#include "nanovllm/base/tensor.h"
#include "nanovllm/ops/backend.h"
#include "nanovllm/ops/cuda/elementwise/quantized_activations.h"
#include "nanovllm/ops/cuda/gemm/gemm_args.h"
#include "nanovllm/ops/cuda/gemm/quantized/quantized_weight.h"

// The first file to read of this folder, which multiplies by quantized weights. quantized_weight.h
// is their layout, pack.h makes it, and weight_formats.cuh reads it in kernels. gemms.cpp chooses:
//   quantized_small_gemm   few tokens: values become 16-bit floats in registers
//   swap_ab_gemm, tile_gemm   more tokens on Hopper: values become bfloat16 on their way to the
//                          tensor cores (hopper/)
//   dequantize             a whole weight becomes floats, just before another GEMM
// If x may be quantized too (quantize_rows), swap_ab_gemm and tile_gemm multiply E4M3 by E4M3, and
// with many tokens cublaslt does.
namespace nanovllm::cuda {

/// small_gemm() for a quantized weight; with kStore out may be float32. x is of the 16-bit `dtype`.
/// A norm can only be a DeferredNorm: with kAdd the GEMM begins `norm` if that has a weight; with
/// another epilogue it finishes `norm` if that has squares.
void quantized_small_gemm(Launch where, const GemmArgs& args, DType dtype,
                          const DeferredNorm& norm = {});
/// Whether quantized_small_gemm() computes this GEMM: up to kFewTokens tokens, as many as the GPU's
/// shared memory has room for; n and k are multiples of 8, n without kSwiglu of 16.
bool supports_quantized_small(Launch where, const GemmArgs& args, DType dtype);
/// The number of parts (DeferredNorm::num_parts) of a norm that this GEMM with kAdd begins.
int num_quantized_norm_parts(Launch where, const GemmArgs& args, DType dtype);

/// out [n, k] = w in out's 16-bit dtype.
void dequantize(Launch where, Tensor out, const QuantizedWeight& w);

/// Quantizes x, or its norm if that has a weight.
void quantize_rows(Launch where, const QuantizedActivations& out, Tensor x, const Norm& norm);
/// The most columns of quantize_rows().
inline constexpr int kMaxQuantizedColumns = 32768;

}  // namespace nanovllm::cuda
