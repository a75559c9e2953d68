#define NANOVLLM_ISA avx512
#include "nanovllm/ops/cpu/gemm_kernels.inc"
