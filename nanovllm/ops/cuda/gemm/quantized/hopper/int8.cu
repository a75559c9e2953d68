#include "nanovllm/ops/cuda/gemm/quantized/hopper/hopper_gemms.cuh"

namespace nanovllm::cuda {
template struct HopperGemms<Int8Format<Bf16, true>>;
}  // namespace nanovllm::cuda
