#include "nanovllm/ops/cuda/gemm/quantized/small.cuh"

namespace nanovllm::cuda {

template void run_quantized_small<Int8Format<Bf16, false>>(Launch, const QuantizedSmall&, bool);
template void run_quantized_small<Int8Format<Bf16, true>>(Launch, const QuantizedSmall&, bool);
template void run_quantized_small<Int8Format<F16, false>>(Launch, const QuantizedSmall&, bool);
template void run_quantized_small<Int8Format<F16, true>>(Launch, const QuantizedSmall&, bool);
template size_t quantized_small_bytes<Int8Format<Bf16, false>>(const GemmArgs&, bool);
template size_t quantized_small_bytes<Int8Format<Bf16, true>>(const GemmArgs&, bool);
template size_t quantized_small_bytes<Int8Format<F16, false>>(const GemmArgs&, bool);
template size_t quantized_small_bytes<Int8Format<F16, true>>(const GemmArgs&, bool);

}  // namespace nanovllm::cuda
