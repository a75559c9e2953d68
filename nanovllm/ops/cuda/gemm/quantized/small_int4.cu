#include "nanovllm/ops/cuda/gemm/quantized/small.cuh"

namespace nanovllm::cuda {

template void run_quantized_small<Int4Format<Bf16, false>>(Launch, const GemmArgs&,
                                                           const QuantizedWeight&);
template void run_quantized_small<Int4Format<Bf16, true>>(Launch, const GemmArgs&,
                                                          const QuantizedWeight&);
template void run_quantized_small<Int4Format<F16, false>>(Launch, const GemmArgs&,
                                                          const QuantizedWeight&);
template void run_quantized_small<Int4Format<F16, true>>(Launch, const GemmArgs&,
                                                         const QuantizedWeight&);

}  // namespace nanovllm::cuda
