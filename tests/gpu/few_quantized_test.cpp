#include <fmt/format.h>

#include "quantized_weights.h"
#include "two_backends.h"

// What the GEMMs of few tokens with quantized weights share with their neighbours.
namespace nanovllm {
namespace {

constexpr QuantizedKind kKinds[] = {
    {QuantizedFormat::kE4M3, 128, 128},     {QuantizedFormat::kE4M3, 1, 0},
    {QuantizedFormat::kInt4, 1, 128, true}, {QuantizedFormat::kInt4, 1, 32, true},
    {QuantizedFormat::kInt4, 1, 0},         {QuantizedFormat::kInt8, 1, 0},
    {QuantizedFormat::kInt8, 1, 128, true}, {QuantizedFormat::kInt8, 1, 32}};

class GpuFewQuantized : public TwoBackends {};

/// The GEMM that adds to the residual may begin the norm after it, which another one finishes: with
/// float32 logits, with SwiGLU, or not at all if the two have different weights.
TEST_P(GpuFewQuantized, OfNormsThatHaveBegun) {
  for (const QuantizedKind& kind : kKinds)
    for (const DType dtype : {DType::kBF16, DType::kF16})
      for (const auto& [hidden, k] : {std::pair{256, 320}, {1040, 144}, {4096, 256}, {5120, 256}}) {
        const WeightRows down = random_quantized(kind, hidden, k, 0.05f, random),
                         up = random_quantized(kind, 352, hidden, 0.05f, random);
        const WeightPtr down_gpu = gpu->pack({&down, 1}, dtype),
                        up_gpu = gpu->pack({&up, 1}, dtype);
        const WeightPtr down_cpu = cpu->pack(as_floats({&down, 1}), dtype);
        const WeightPtr up_cpu = cpu->pack(as_floats({&up, 1}), dtype);
        const Twin first = make({nullptr, DType::kF32, hidden});
        const Twin other = make({nullptr, DType::kF32, hidden});
        for (const int64_t tokens : {1, 4, 5, 8, 13, 16}) {
          if (skips()) continue;
          const std::string what = fmt::format("{}, {} [{}, {}, {}]", name_of(kind),
                                               dtype_name(dtype), tokens, hidden, k);
          const Twin x = make({nullptr, dtype, tokens, k});
          const Twin sum = make({nullptr, dtype, tokens, hidden});
          const Twin scratch = make({nullptr, dtype, tokens, hidden}, 0);
          const Twin out = make({nullptr, dtype, tokens, 352}, 0);
          const Twin half = make({nullptr, dtype, tokens, 176}, 0);
          const Twin logits = make({nullptr, DType::kF32, tokens, 352}, 0);
          Residual gpu_sum(sum.on_gpu, scratch.on_gpu), cpu_sum(sum.on_cpu, scratch.on_cpu);
          for (const Twin* norm : {&first, &other}) {
            const Norm begun_gpu = {first.on_gpu, 1e-6f}, begun_cpu = {first.on_cpu, 1e-6f};
            const Norm norm_gpu = {norm->on_gpu, 1e-6f}, norm_cpu = {norm->on_cpu, 1e-6f};
            gpu->add_matmul(gpu_sum, x.on_gpu, *down_gpu, begun_gpu);
            cpu->add_matmul(cpu_sum, x.on_cpu, *down_cpu, begun_cpu);
            expect_equal(sum, "sum, " + what);
            gpu->norm_matmul(logits.on_gpu, gpu_sum, norm_gpu, *up_gpu, {});
            cpu->norm_matmul(logits.on_cpu, cpu_sum, norm_cpu, *up_cpu, {});
            expect_equal(logits, "float32 logits, " + what, dtype == DType::kBF16 ? 1e-2 : 2e-3);
            gpu->add_matmul(gpu_sum, x.on_gpu, *down_gpu, begun_gpu);
            cpu->add_matmul(cpu_sum, x.on_cpu, *down_cpu, begun_cpu);
            gpu->norm_swiglu(half.on_gpu, gpu_sum, norm_gpu, *up_gpu, out.on_gpu);
            cpu->norm_swiglu(half.on_cpu, cpu_sum, norm_cpu, *up_cpu, out.on_cpu);
            expect_equal(half, "swiglu, " + what, 2e-2);
          }
        }
      }
}

NANOVLLM_BOTH_KERNELS(GpuFewQuantized);

}  // namespace
}  // namespace nanovllm
