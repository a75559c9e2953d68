#include "nanovllm/ops/cuda/gemm/quantized/small.cuh"

namespace nanovllm::cuda {

template void run_quantized_small<Int4Format<Bf16, false>>(Launch, const QuantizedSmall&, int);
template void run_quantized_small<Int4Format<Bf16, true>>(Launch, const QuantizedSmall&, int);
template void run_quantized_small<Int4Format<F16, false>>(Launch, const QuantizedSmall&, int);
template void run_quantized_small<Int4Format<F16, true>>(Launch, const QuantizedSmall&, int);

}  // namespace nanovllm::cuda
