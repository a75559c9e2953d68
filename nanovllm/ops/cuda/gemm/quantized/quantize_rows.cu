#include <algorithm>

#include "nanovllm/ops/cuda/device/e4m3.cuh"
#include "nanovllm/ops/cuda/elementwise/row_ops.cuh"
#include "nanovllm/ops/cuda/gemm/hopper/swap_ab_gemm.h"
#include "nanovllm/ops/cuda/gemm/quantized/quantized_gemm.h"

//   values [T, k] = round(y / scale),  y = x or rms_norm(x),  scale = max |y| / 448,
// where a scale is that of a row or of 128 columns of it: activations as E4M3, with the norm before
// in the same kernel. A thread block takes row after row, or part after part. Memory bandwidth
// bounds many rows, latency few.
namespace nanovllm::cuda {
namespace {

constexpr int kWidth = 8;  // columns that a thread has together
constexpr int kLanes = kQuantizedChunk / kWidth;
constexpr int kMostThreads = 512;
/// Shared memory that a thread block asks for and does not use, if the thread blocks of the next
/// GEMM take all registers of a multiprocessor (tile_gemm.cu). With it, no thread block of this
/// kernel fits beside one of decode attention. It would wait there, on nearly every multiprocessor,
/// and keep that GEMM from beginning its copies.
constexpr size_t kUnusedBytes = 32 << 10;

/// A thread block takes row after row, or one of `pieces` parts of a row after the other; a part
/// has whole chunks. A thread has up to kVectors vectors of it. The norm's weights are loaded
/// before the previous kernel has ended.
template <class T, bool kNorm, int kVectors>
__global__ void __launch_bounds__(kMostThreads)
    quantize_kernel(const QuantizedActivations out, const T* in, const float* weight, int width,
                    float eps, int num_rows, int pieces) {
  launch_dependents();
  // Rows use the two halves in turn, so that one barrier a row is enough.
  __shared__ float squares_of_warps[2][kMostThreads / 32];
  __shared__ uint32_t largest_of_warps[2][kMostThreads / 32];
  const auto column_of = [&](int piece, int j) {
    return ((piece * kVectors + j) * static_cast<int>(blockDim.x) + static_cast<int>(threadIdx.x)) *
           kWidth;
  };
  Vec<float, kWidth> w[kNorm ? kVectors : 1];
  if constexpr (kNorm) {
#pragma unroll
    for (int j = 0; j < kVectors; ++j)
      if (column_of(0, j) < width) w[j] = load<kWidth>(weight + column_of(0, j));
  }
  wait_for_previous_kernel();
  const int count = num_rows * pieces;
  for (int item = static_cast<int>(blockIdx.x), turn = 0; item < count;
       item += static_cast<int>(gridDim.x), turn ^= 1) {
    const int row = item / pieces, piece = item % pieces;
    const auto column = [&](int j) { return column_of(piece, j); };
    Vec<T, kWidth> x[kVectors];
    const T* const from = in + int64_t{row} * width;
#pragma unroll
    for (int j = 0; j < kVectors; ++j)
      if (column(j) < width) x[j] = load<kWidth>(from + column(j));
    if constexpr (kNorm) {
      float squares = 0;
#pragma unroll
      for (int j = 0; j < kVectors; ++j)
        if (column(j) < width) squares = add_squares(x[j], squares);
      const float factor =
          rms_factor(block_reduce(squares, squares_of_warps[turn], Sum()), width, eps);
#pragma unroll
      for (int j = 0; j < kVectors; ++j)
        if (column(j) < width) x[j] = normed(x[j], factor, w[j]);
    }
    uint32_t largest[kVectors], whole = 0;
#pragma unroll
    for (int j = 0; j < kVectors; ++j) {
      largest[j] = column(j) < width ? largest_magnitude(x[j], 0) : 0;
      if (out.has_chunks) {
#pragma unroll
        for (int lane = 1; lane < kLanes; lane *= 2)
          largest[j] = max(largest[j], __shfl_xor_sync(kAllLanes, largest[j], lane));
      }
      whole = max(whole, largest[j]);
    }
    if (!out.has_chunks) {
      whole = block_reduce(whole, largest_of_warps[turn], Max());
      if (threadIdx.x == 0) out.scales[row] = e4m3_scale(whole);
    }
    auto* const to = static_cast<E4m3*>(out.values) + row * out.row_bytes;
#pragma unroll
    for (int j = 0; j < kVectors; ++j) {
      if (column(j) >= width) continue;
      const float scale = e4m3_scale(out.has_chunks ? largest[j] : whole);
      store(to + column(j), quantized(x[j], __fdividef(1, scale)));
      if (out.has_chunks && threadIdx.x % kLanes == 0)
        out.scales[int64_t{column(j) / kQuantizedChunk} * out.scale_stride + row] = scale;
    }
  }
}

// -- launchers

template <bool kNorm>
void run(Launch where, const QuantizedActivations& out, Tensor in, const Norm& norm) {
  const auto num_rows = static_cast<int>(in.shape[0]), width = static_cast<int>(in.shape[1]);
  // Chunks do not depend on each other, so small thread blocks divide a row.
  const bool divides = !kNorm && out.has_chunks;
  const bool waits_apart = divides && num_rows > kE4M3SwapAbTokens && num_rows <= kSwapAbTokens;
  const int vectors = (width + kWidth - 1) / kWidth;
  const int threads = divides ? 256 : std::min((vectors + 31) / 32 * 32, kMostThreads);
  const int most_blocks = 2048 / threads * where.num_sms;  // that run at once
  const int of_row = (vectors + threads - 1) / threads;    // vectors that a thread has of a row
  with_16bit_type(in.dtype, [&](auto type) {
    using T = decltype(type);
    const auto launch_with = [&]<int kVectors>() {
      const int pieces = (of_row + kVectors - 1) / kVectors;
      launch(where, quantize_kernel<T, kNorm, kVectors>, std::min(num_rows * pieces, most_blocks),
             threads, waits_apart ? kUnusedBytes : 0, out, in.as<const T>(),
             norm.weight.as<const float>(), width, norm.eps, num_rows, pieces);
    };
    const int wanted = divides ? num_rows * of_row > most_blocks ? 2 : 1 : of_row;
    if (wanted <= 1) launch_with.template operator()<1>();
    else if (wanted <= 2) launch_with.template operator()<2>();
    else if (wanted <= 4) launch_with.template operator()<4>();
    else launch_with.template operator()<8>();
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
