#pragma once

#include "nanovllm/base/tensor.h"
#include "nanovllm/ops/backend.h"
#include "nanovllm/ops/cuda/gemm/gemm_args.h"
#include "nanovllm/ops/cuda/gemm/quantized/quantized_weight.h"

// The first file to read of this folder: what there is for quantized weights. quantized_weight.h is
// their layout, pack.h makes it, and weight_formats.cuh reads it in kernels. gemms.cpp chooses:
//   quantized_small_gemm   up to kFewTokens tokens: values become 16-bit floats in registers
//   quantized_swap_ab_gemm integers on Hopper, 64 tokens at a time
//   dequantize             more tokens: a whole weight becomes floats, just before another GEMM
// If x may be quantized, quantize_rows makes E4M3 of it, for
//   e4m3_swap_ab_gemm      up to 64 tokens on Hopper
//   cublaslt               more tokens
namespace nanovllm::cuda {

/// Whether quantized_small_gemm() computes a GEMM: up to kFewTokens tokens, and a norm only as a
/// DeferredNorm.
bool supports_quantized_small_gemm(const GemmArgs& args);
/// small_gemm() for a quantized weight; with kStore out may be float32. x is of the 16-bit `dtype`.
/// With kAdd it begins `norm` if that has a weight; otherwise it finishes `norm` if it has squares.
void quantized_small_gemm(Launch where, const GemmArgs& args, const QuantizedWeight& w, DType dtype,
                          const DeferredNorm& norm = {});
/// DeferredNorm::num_parts of a norm that this GEMM with kAdd begins.
int num_quantized_norm_parts(Launch where, const GemmArgs& args);

/// Whether quantized_swap_ab_gemm() computes a GEMM: integers, up to kSwapAbTokens tokens, rows of
/// w and k multiples of 128, no norm. Hopper only.
bool supports_quantized_swap_ab(const GemmArgs& args, const QuantizedWeight& w);
/// swap_ab_gemm() for a quantized weight, without DeferredNorm. x is of the 16-bit `dtype`.
void quantized_swap_ab_gemm(Launch where, const GemmArgs& args, const QuantizedWeight& w,
                            DType dtype);

/// out [n, k] = w in out's 16-bit dtype.
void dequantize(Launch where, Tensor out, const QuantizedWeight& w);

/// x [T, k] as E4M3 values [T, row_bytes] times scales: one for each row, or one for each
/// kQuantizedChunk columns of it, [chunks, scale_stride]. cuBLASLt needs a stride of T.
struct QuantizedActivations {
  void* values = nullptr;
  float* scales = nullptr;
  int64_t row_bytes = 0;
  int scale_stride = 0;
  bool has_chunks = false;
};
/// Quantizes x, or its norm if that has a weight.
void quantize_rows(Launch where, const QuantizedActivations& out, Tensor x, const Norm& norm);
/// The most columns of quantize_rows().
inline constexpr int kMaxQuantizedColumns = 32768;

/// Whether e4m3_swap_ab_gemm() computes a GEMM: E4M3, up to kSwapAbTokens tokens, rows of w and k
/// multiples of 128. Hopper only.
bool supports_e4m3_swap_ab(const GemmArgs& args, const QuantizedWeight& w);
/// swap_ab_gemm() for weights and activations in E4M3, without DeferredNorm. out is of the 16-bit
/// `dtype`; the scale_stride of x is a multiple of 4.
void e4m3_swap_ab_gemm(Launch where, const GemmArgs& args, const QuantizedWeight& w,
                       const QuantizedActivations& x, DType dtype);

}  // namespace nanovllm::cuda
