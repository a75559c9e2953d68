#define NANOVLLM_ISA plain
#include "nanovllm/ops/cpu/sampler_kernels.inc"

namespace nanovllm::cpu {
const SamplerKernels kSamplerPlain = plain::kKernels;
}  // namespace nanovllm::cpu
