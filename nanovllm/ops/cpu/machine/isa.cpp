#include "nanovllm/ops/cpu/machine/isa.h"

#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "nanovllm/base/check.h"
#include "nanovllm/ops/cpu/kernels/attention.h"
#include "nanovllm/ops/cpu/kernels/elementwise.h"
#include "nanovllm/ops/cpu/kernels/gemm.h"
#include "nanovllm/ops/cpu/kernels/int_gemm.h"
#include "nanovllm/ops/cpu/kernels/sampler.h"

namespace nanovllm::cpu {

// Each source in kernels/ defines its table in every one of these namespaces (CMakeLists.txt).
#define NANOVLLM_TABLES(isa)                                                                     \
  namespace isa {                                                                                \
  extern const AttentionKernels kAttention[3], kE4m3Attention[3];                                \
  extern const ElementwiseKernels kElementwise[3];                                               \
  extern const GemmKernels kGemm[3];                                                             \
  extern const IntGemmKernels kIntGemm[3];                                                       \
  extern const SamplerKernels kSampler;                                                          \
  static Kernels tables(size_t i) {                                                              \
    return {kAttention[i], kE4m3Attention[i], kElementwise[i], kGemm[i], kIntGemm[i], kSampler}; \
  }                                                                                              \
  }
NANOVLLM_TABLES(plain)
NANOVLLM_TABLES(avx2)
NANOVLLM_TABLES(avxvnni)
NANOVLLM_TABLES(avx512)
NANOVLLM_TABLES(avx512vnni)
NANOVLLM_TABLES(avx512bf16)
NANOVLLM_TABLES(amx)

/// Asks the processor, and Linux for the use of its tile registers in this process.
static bool may_use_amx() {
  constexpr unsigned kTileAndInt8AndBf16 = 3u << 24 | 1u << 22;
  constexpr int kRequestPermission = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid_count(7, 0, &a, &b, &c, &d) != 0 &&
         (d & kTileAndInt8AndBf16) == kTileAndInt8AndBf16 &&
         syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

bool is_supported(Isa isa) {
  __builtin_cpu_init();
  switch (isa) {
    case Isa::kPlain:
      return true;
    case Isa::kAvx2:
      return __builtin_cpu_supports("x86-64-v3");
    case Isa::kAvxVnni:
      return is_supported(Isa::kAvx2) && __builtin_cpu_supports("avxvnni");
    case Isa::kAvx512:
      return __builtin_cpu_supports("x86-64-v4");
    case Isa::kAvx512Vnni:
      return is_supported(Isa::kAvx512) && __builtin_cpu_supports("avx512vnni");
    case Isa::kAvx512Bf16:
      return is_supported(Isa::kAvx512Vnni) && __builtin_cpu_supports("avx512bf16");
    case Isa::kAmx:
      static const bool has_amx = may_use_amx();
      return is_supported(Isa::kAvx512Bf16) && has_amx;
  }
  return false;
}

Isa best_isa() {
  int best = kNumIsas - 1;
  while (!is_supported(static_cast<Isa>(best))) --best;
  return static_cast<Isa>(best);
}

const char* isa_name(Isa isa) {
  static const char* const names[] = {"x86-64",      "avx2",        "avx_vnni", "avx512",
                                      "avx512_vnni", "avx512_bf16", "amx"};
  return names[static_cast<size_t>(isa)];
}

Kernels kernels_for(Isa isa, DType dtype) {
  static constexpr Kernels (*tables[])(size_t) = {
      plain::tables,      avx2::tables,       avxvnni::tables, avx512::tables,
      avx512vnni::tables, avx512bf16::tables, amx::tables};
  return tables[static_cast<size_t>(isa)](table_index(dtype));
}

size_t table_index(DType dtype) {
  check(dtype == DType::kF32 || dtype == DType::kBF16 || dtype == DType::kF16,
        "the CPU backend does not compute in {}", dtype_name(dtype));
  return dtype == DType::kF32 ? 0 : dtype == DType::kBF16 ? 1 : 2;
}

}  // namespace nanovllm::cpu
