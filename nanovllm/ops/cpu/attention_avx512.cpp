#define NANOVLLM_ISA avx512
#include "nanovllm/ops/cpu/attention_kernels.inc"

namespace nanovllm::cpu {
using namespace avx512;
const AttentionKernels kAttentionAvx512[3] = {kFloatKernels<float>, kFloatKernels<Bf16>,
                                              kFloatKernels<F16>};
}  // namespace nanovllm::cpu
