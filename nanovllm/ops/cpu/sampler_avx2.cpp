#define NANOVLLM_ISA avx2
#include "nanovllm/ops/cpu/sampler_kernels.inc"

namespace nanovllm::cpu {
const SamplerKernels kSamplerAvx2 = avx2::kKernels;
}  // namespace nanovllm::cpu
