#include "nanovllm/ops/cuda/gemm/quantized/hopper/hopper_gemms.cuh"

namespace nanovllm::cuda {
template struct HopperGemms<E4M3Format<Bf16>>;
}  // namespace nanovllm::cuda
