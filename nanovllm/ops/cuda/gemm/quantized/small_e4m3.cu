#include "nanovllm/ops/cuda/gemm/quantized/small.cuh"

namespace nanovllm::cuda {

template void run_quantized_small<E4M3Format<Bf16>>(Launch, const GemmArgs&,
                                                    const QuantizedWeight&);
template void run_quantized_small<E4M3Format<F16>>(Launch, const GemmArgs&, const QuantizedWeight&);

}  // namespace nanovllm::cuda
