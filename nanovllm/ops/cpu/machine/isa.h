#pragma once

#include "nanovllm/base/dtype.h"

namespace nanovllm::cpu {

/// Instruction sets that the kernels are compiled for, the best one last. VNNI are instructions for
/// products of integers.
enum class Isa {
  kPlain,       ///< any x86-64
  kAvx2,        ///< AVX2, FMA, F16C (x86-64-v3)
  kAvxVnni,     ///< and AVX-VNNI
  kAvx512,      ///< AVX-512 F, BW, CD, DQ, VL (x86-64-v4)
  kAvx512Vnni,  ///< and VNNI
  kAvx512Bf16,  ///< and BF16
  kAmx,         ///< and AMX for integers and bfloat16
};
constexpr int kNumIsas = 7;

/// Whether this processor and its operating system support the instruction set, and its kernels
/// were compiled.
bool is_supported(Isa isa);
/// The best instruction set that is_supported().
Isa best_isa();
const char* isa_name(Isa isa);

struct AttentionKernels;
struct ElementwiseKernels;
struct GemmKernels;
struct IntGemmKernels;
struct SamplerKernels;

/// The kernels of one instruction set for a model of one dtype: a table of functions for each
/// source in kernels/. The sampler's logits are float32 in every model.
struct Kernels {
  const AttentionKernels& attention;       ///< over a cache of the model's dtype
  const AttentionKernels& e4m3_attention;  ///< over a cache of e4m3
  const ElementwiseKernels& elementwise;
  const GemmKernels& gemm;
  const IntGemmKernels& int_gemm;
  const SamplerKernels& sampler;
};
Kernels kernels_for(Isa isa, DType dtype);
/// The index of a dtype in a table of functions: float32, bfloat16, float16.
size_t table_index(DType dtype);

}  // namespace nanovllm::cpu
