#define NANOVLLM_ISA avx512
#include "nanovllm/ops/cpu/elementwise_kernels.inc"
