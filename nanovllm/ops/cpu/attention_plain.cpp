#define NANOVLLM_ISA plain
#include "nanovllm/ops/cpu/attention_kernels.inc"

namespace nanovllm::cpu {
using namespace plain;
const AttentionKernels kAttentionPlain[3] = {kFloatKernels<float>, kFloatKernels<Bf16>,
                                             kFloatKernels<F16>};
}  // namespace nanovllm::cpu
