#include "nanovllm/ops/cuda/experts/few_experts.cuh"

// The GEMMs of few_experts.cu for quantized weights, which are compiled apart from the others.
namespace nanovllm::cuda {

int64_t few_quantized_shared_bytes(const FewExperts& args) {
  int64_t bytes = 0;
  with_quantized_format<Bf16>(*args.quantized_gate_up, [&](auto format) {
    bytes = few_shared_bytes<decltype(format)>(args.x.shape[0], args.x.shape[1]);
  });
  return bytes;
}

void run_few_quantized_gemms(Launch where, const FewExpertsParams& p, DType dtype) {
  with_16bit_type(dtype, [&](auto type) {
    using T = decltype(type);
    with_quantized_format<T>(p.gate_up,
                             [&](auto format) { run_few_gemms<decltype(format)>(where, p); });
  });
}

}  // namespace nanovllm::cuda
