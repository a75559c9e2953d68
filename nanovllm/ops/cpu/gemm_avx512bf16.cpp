#define NANOVLLM_ISA avx512bf16
#include "nanovllm/ops/cpu/gemm_kernels.inc"
