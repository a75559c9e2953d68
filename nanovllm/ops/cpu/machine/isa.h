#pragma once

#include "nanovllm/base/dtype.h"

namespace nanovllm::cpu {

/// Instruction sets that the kernels are compiled for; each includes all before it.
enum class Isa {
  kPlain,       ///< any x86-64
  kAvx2,        ///< AVX2, FMA, F16C (x86-64-v3)
  kAvx512,      ///< AVX-512 F, BW, CD, DQ, VL (x86-64-v4)
  kAvx512Bf16,  ///< and BF16; only oneDNN uses AMX
};

/// The best one that this processor and its operating system support.
Isa best_isa();
const char* isa_name(Isa isa);

struct AttentionKernels;
struct ElementwiseKernels;
struct GemmKernels;
struct SamplerKernels;

/// The kernels of one instruction set for a model of one dtype: a table of functions for each
/// source in kernels/. The sampler's logits are float32 in every model.
struct Kernels {
  const AttentionKernels& attention;       ///< over a cache of the model's dtype
  const AttentionKernels& e4m3_attention;  ///< over a cache of e4m3
  const ElementwiseKernels& elementwise;
  const GemmKernels& gemm;
  const SamplerKernels& sampler;
};
Kernels kernels_for(Isa isa, DType dtype);
/// The index of a dtype in a table of functions: float32, bfloat16, float16.
size_t table_index(DType dtype);

}  // namespace nanovllm::cpu
