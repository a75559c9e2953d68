#define NANOVLLM_ISA avx2
#include "nanovllm/ops/cpu/elementwise_kernels.inc"
