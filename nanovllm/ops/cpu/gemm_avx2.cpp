#define NANOVLLM_ISA avx2
#include "nanovllm/ops/cpu/gemm_kernels.inc"
