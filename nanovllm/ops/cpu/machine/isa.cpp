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

// Each source in kernels/ defines its table in the namespaces of the instruction sets that it is
// compiled for (CMakeLists.txt).
#define NANOVLLM_FLOAT_TABLES(isa)                                \
  namespace isa {                                                 \
  extern const AttentionKernels kAttention[3], kE4m3Attention[3]; \
  extern const GemmKernels kGemm[3];                              \
  }
#define NANOVLLM_SIMD_TABLES(isa)                  \
  namespace isa {                                  \
  extern const ElementwiseKernels kElementwise[3]; \
  extern const SamplerKernels kSampler;            \
  }
#define NANOVLLM_INT_TABLES(isa)           \
  namespace isa {                          \
  extern const IntGemmKernels kIntGemm[3]; \
  }
NANOVLLM_FLOAT_TABLES(plain)
NANOVLLM_FLOAT_TABLES(avx2)
NANOVLLM_SIMD_TABLES(plain)
NANOVLLM_SIMD_TABLES(avx2)
NANOVLLM_INT_TABLES(plain)
NANOVLLM_INT_TABLES(avx2)
#ifdef NANOVLLM_FEW_ISAS
// Nothing better than AVX2 was compiled, so the other names stand for its kernels.
namespace avxvnni = avx2;
namespace avx512 = avx2;
namespace avx512vnni = avx2;
namespace avx512bf16 = avx2;
namespace amx = avx2;
constexpr Isa kBestCompiled = Isa::kAvx2;
#else
NANOVLLM_FLOAT_TABLES(avx512)
NANOVLLM_FLOAT_TABLES(avx512bf16)
NANOVLLM_FLOAT_TABLES(amx)
NANOVLLM_SIMD_TABLES(avx512)
NANOVLLM_INT_TABLES(avxvnni)
NANOVLLM_INT_TABLES(avx512)
NANOVLLM_INT_TABLES(avx512vnni)
NANOVLLM_INT_TABLES(amx)
constexpr Isa kBestCompiled = Isa::kAmx;
#endif

namespace {

struct FloatTables {
  const AttentionKernels *attention, *e4m3_attention;
  const GemmKernels* gemm;
};
struct SimdTables {
  const ElementwiseKernels* elementwise;
  const SamplerKernels* sampler;
};

}  // namespace

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
  if (isa > kBestCompiled) return false;
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
  // A source for which an instruction set adds nothing is compiled for a lower one only.
  constexpr FloatTables kFloat[] = {
      {plain::kAttention, plain::kE4m3Attention, plain::kGemm},
      {avx2::kAttention, avx2::kE4m3Attention, avx2::kGemm},
      {avx512::kAttention, avx512::kE4m3Attention, avx512::kGemm},
      {avx512bf16::kAttention, avx512bf16::kE4m3Attention, avx512bf16::kGemm},
      {amx::kAttention, amx::kE4m3Attention, amx::kGemm}};
  constexpr SimdTables kSimd[] = {{plain::kElementwise, &plain::kSampler},
                                  {avx2::kElementwise, &avx2::kSampler},
                                  {avx512::kElementwise, &avx512::kSampler}};
  constexpr const IntGemmKernels* kInt[] = {plain::kIntGemm,      avx2::kIntGemm,
                                            avxvnni::kIntGemm,    avx512::kIntGemm,
                                            avx512vnni::kIntGemm, amx::kIntGemm};
  struct Choice {
    size_t floats, simd, ints;
  };
  // The entries are in the order of Isa.
  constexpr Choice kChoices[kNumIsas] = {{0, 0, 0}, {1, 1, 1}, {1, 1, 2}, {2, 2, 3},
                                         {2, 2, 4}, {3, 2, 4}, {4, 2, 5}};
  const Choice& choice = kChoices[static_cast<size_t>(isa)];
  const size_t i = table_index(dtype);
  const FloatTables& floats = kFloat[choice.floats];
  const SimdTables& simd = kSimd[choice.simd];
  return {floats.attention[i], floats.e4m3_attention[i], simd.elementwise[i],
          floats.gemm[i],      kInt[choice.ints][i],     *simd.sampler};
}

size_t table_index(DType dtype) {
  check(dtype == DType::kF32 || dtype == DType::kBF16 || dtype == DType::kF16,
        "the CPU backend does not compute in {}", dtype_name(dtype));
  return dtype == DType::kF32 ? 0 : dtype == DType::kBF16 ? 1 : 2;
}

}  // namespace nanovllm::cpu
