#include "nanovllm/ops/cuda/gemm/quantized/small.cuh"

namespace nanovllm::cuda {

template void run_quantized_small<E4M3Format<Bf16>>(Launch, const QuantizedSmall&, int);
template void run_quantized_small<E4M3Format<F16>>(Launch, const QuantizedSmall&, int);

}  // namespace nanovllm::cuda
