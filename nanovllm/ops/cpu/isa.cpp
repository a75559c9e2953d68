#include "nanovllm/ops/cpu/isa.h"

namespace nanovllm::cpu {

Isa best_isa() {
  __builtin_cpu_init();
  if (!__builtin_cpu_supports("x86-64-v3")) return Isa::kPlain;
  if (!__builtin_cpu_supports("x86-64-v4")) return Isa::kAvx2;
  return __builtin_cpu_supports("avx512bf16") ? Isa::kAvx512Bf16 : Isa::kAvx512;
}

const char* isa_name(Isa isa) {
  switch (isa) {
    case Isa::kPlain:
      return "x86-64";
    case Isa::kAvx2:
      return "avx2";
    case Isa::kAvx512:
      return "avx512";
    case Isa::kAvx512Bf16:
      return "avx512_bf16";
  }
  return "unknown";
}

}  // namespace nanovllm::cpu
