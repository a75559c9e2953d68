#define NANOVLLM_ISA plain
#include "nanovllm/ops/cpu/elementwise_kernels.inc"
