#pragma once

#include <string>

namespace nanovllm::cpu {

/// Instruction sets that kernels are compiled for, each holding all before it.
enum class Isa {
  kPlain,       ///< any x86-64
  kAvx2,        ///< AVX2, FMA, F16C (x86-64-v3)
  kAvx512,      ///< AVX-512 F, BW, CD, DQ, VL (x86-64-v4)
  kAvx512Bf16,  ///< and BF16; AMX is oneDNN's
};

/// The best that this processor and its operating system have.
Isa best_isa();
const char* isa_name(Isa isa);

}  // namespace nanovllm::cpu
