#include <cuda_fp8.h>

#include <algorithm>

#include "nanovllm/ops/cuda/elementwise/row_ops.cuh"
#include "nanovllm/ops/cuda/gemm/quantized/quantized_gemm.h"

// Activations as E4M3: value = x / scale, scale = max |x| / 448 over a row or over 128 columns of
// it. The norm before is part of the kernel.
namespace nanovllm::cuda {
namespace {

constexpr int kThreads = 256, kWidth = 8;  // columns that a thread has together
constexpr int kLanes = kQuantizedChunk / kWidth;
constexpr float kLargest = 448;  // of E4M3

__device__ inline uint2 to_e4m3(const float (&x)[kWidth], float factor) {
  uint32_t words[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const float* const v = x + 4 * i;
    const uint32_t low =
        __nv_cvt_float2_to_fp8x2({v[0] * factor, v[1] * factor}, __NV_SATFINITE, __NV_E4M3);
    const uint32_t high =
        __nv_cvt_float2_to_fp8x2({v[2] * factor, v[3] * factor}, __NV_SATFINITE, __NV_E4M3);
    words[i] = low | high << 16;
  }
  return {words[0], words[1]};
}

/// A thread block takes row after row; each thread has up to kVectors vectors of a row.
template <class T, bool kNorm, int kVectors>
__global__ void __launch_bounds__(kThreads)
    quantize_kernel(const QuantizedActivations out, const T* in, const float* weight, int width,
                    float eps, int num_rows) {
  launch_dependents();
  __shared__ float shared[2][kThreads / 32];
  const auto column = [&](int j) {
    return (j * kThreads + static_cast<int>(threadIdx.x)) * kWidth;
  };
  wait_for_previous_kernel();
  for (int64_t row = blockIdx.x; row < num_rows; row += gridDim.x) {
    Vec<T, kWidth> x[kVectors];
    const T* const from = in + row * width;
#pragma unroll
    for (int j = 0; j < kVectors; ++j)
      if (column(j) < width) x[j] = load<kWidth>(from + column(j));
    if constexpr (kNorm) {
      float squares = 0;
#pragma unroll
      for (int j = 0; j < kVectors; ++j)
        if (column(j) < width) squares = add_squares(x[j], squares);
      const float factor = rms_factor(block_reduce(squares, shared[0], Sum()), width, eps);
#pragma unroll
      for (int j = 0; j < kVectors; ++j)
        if (column(j) < width) x[j] = normed(x[j], factor, load<kWidth>(weight + column(j)));
    }
    float largest[kVectors], whole = 0;
#pragma unroll
    for (int j = 0; j < kVectors; ++j) {
      largest[j] = 0;
      if (column(j) < width) {
#pragma unroll
        for (int i = 0; i < kWidth; ++i) largest[j] = fmaxf(largest[j], fabsf(to_float(x[j].x[i])));
      }
      if (out.has_chunks) {
#pragma unroll
        for (int lane = 1; lane < kLanes; lane *= 2)
          largest[j] = fmaxf(largest[j], __shfl_xor_sync(kAllLanes, largest[j], lane));
      }
      whole = fmaxf(whole, largest[j]);
    }
    if (!out.has_chunks) {
      whole = block_reduce(whole, shared[1], Max());
      if (threadIdx.x == 0) out.scales[row] = whole / kLargest;
    }
    auto* const to = static_cast<unsigned char*>(out.values) + row * out.row_bytes;
#pragma unroll
    for (int j = 0; j < kVectors; ++j) {
      if (column(j) >= width) continue;
      const float most = out.has_chunks ? largest[j] : whole;
      const float factor = most > 0 ? __fdividef(kLargest, most) : 0;
      float values[kWidth];
#pragma unroll
      for (int i = 0; i < kWidth; ++i) values[i] = to_float(x[j].x[i]);
      *reinterpret_cast<uint2*>(to + column(j)) = to_e4m3(values, factor);
      if (out.has_chunks && threadIdx.x % kLanes == 0)
        out.scales[int64_t{column(j) / kQuantizedChunk} * out.scale_stride + row] = most / kLargest;
    }
    if (gridDim.x < num_rows) __syncthreads();  // before `shared` is used again
  }
}

// -- launchers

template <bool kNorm>
void run(Launch where, const QuantizedActivations& out, Tensor in, const Norm& norm) {
  const auto num_rows = static_cast<int>(in.shape[0]), width = static_cast<int>(in.shape[1]);
  with_16bit_type(in.dtype, [&](auto type) {
    using T = decltype(type);
    const auto launch_with = [&](auto kernel) {
      launch(where, kernel, std::min(num_rows, 4 * where.num_sms), kThreads, 0, out,
             in.as<const T>(), norm.weight.as<const float>(), width, norm.eps, num_rows);
    };
    if (width <= 2 * kThreads * kWidth) launch_with(quantize_kernel<T, kNorm, 2>);
    else if (width <= 6 * kThreads * kWidth) launch_with(quantize_kernel<T, kNorm, 6>);
    else launch_with(quantize_kernel<T, kNorm, 16>);
  });
}

}  // namespace

void quantize_rows(Launch where, const QuantizedActivations& out, Tensor x, const Norm& norm) {
  check_args(x.shape[1] % kWidth == 0 && x.shape[1] <= kMaxQuantizedColumns,
             "quantize_rows: a row must have a multiple of 8 elements, up to 32768");
  if (norm.weight) run<true>(where, out, x, norm);
  else run<false>(where, out, x, norm);
}

}  // namespace nanovllm::cuda
