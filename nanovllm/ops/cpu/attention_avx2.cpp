#define NANOVLLM_ISA avx2
#include "nanovllm/ops/cpu/attention_kernels.inc"

namespace nanovllm::cpu {
using namespace avx2;
const AttentionKernels kAttentionAvx2[3] = {kFloatKernels<float>, kFloatKernels<Bf16>,
                                            kFloatKernels<F16>};
}  // namespace nanovllm::cpu
