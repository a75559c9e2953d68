#include "nanovllm/ops/cuda/gemm/quantized/small.cuh"

namespace nanovllm::cuda {

template void run_quantized_small<E4M3Format<Bf16>>(Launch, const QuantizedSmall&, bool);
template void run_quantized_small<E4M3Format<F16>>(Launch, const QuantizedSmall&, bool);
template size_t quantized_small_bytes<E4M3Format<Bf16>>(const GemmArgs&, bool);
template size_t quantized_small_bytes<E4M3Format<F16>>(const GemmArgs&, bool);

}  // namespace nanovllm::cuda
