#define NANOVLLM_ISA avx512
#include "nanovllm/ops/cpu/sampler_kernels.inc"

namespace nanovllm::cpu {
const SamplerKernels kSamplerAvx512 = avx512::kKernels;
}  // namespace nanovllm::cpu
