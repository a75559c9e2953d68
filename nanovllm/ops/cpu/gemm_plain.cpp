#define NANOVLLM_ISA plain
#include "nanovllm/ops/cpu/gemm_kernels.inc"
