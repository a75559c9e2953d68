#include <algorithm>

#include "nanovllm/ops/cuda/exchange.cuh"

// A sum over the ranks and the norm behind it.
namespace nanovllm::cuda {
namespace {

// -- kernels

/// A block takes whole rows, a warp 28 units of one, whose weights it keeps.
constexpr int kUnitsPerWarp = 4 * kUnitsPerLine, kMaxPieces = 2;  // of a row, for a warp
template <class T, int kPieces>
__global__ void __launch_bounds__(1024)
    sum_norm_lines_kernel(const Peers peers, uint4* out, uint4* x, const float* weight, int width,
                          int num_rows, float eps) {
  constexpr int kCount = sizeof(uint4) / sizeof(T);
  __shared__ float sums[2][32];
  const int warp = threadIdx.x / 32, num_warps = blockDim.x / 32, lane = threadIdx.x % 32;
  const int row_warps = (width + kUnitsPerWarp - 1) / kUnitsPerWarp;
  // Calls body(piece, unit of the row, line unit of the row).
  const auto for_pieces = [&](auto body) {
#pragma unroll
    for (int i = 0; i < kPieces; ++i) {
      const int part = i * num_warps + warp;
      if (part >= row_warps) break;
      const int unit = part * kUnitsPerWarp + lane / 8 * kUnitsPerLine + lane % 8;
      body(i, lane % 8 == kUnitsPerLine || unit > width ? width : unit, part * 32 + lane);
    }
  };
  Vec<float, kCount> w[kPieces] = {};
  for_pieces([&](int i, int unit, int) {
    if (unit < width) w[i] = load<kCount>(weight + unit * kCount);
  });
  begin_kernel();
  const uint32_t epoch = current_epoch(peers);
  for (int row = blockIdx.x; row < num_rows; row += gridDim.x)
    for_pieces([&](int, int unit, int at) {
      const uint4 mine = unit < width ? x[row * width + unit] : uint4{};
      for (int r = 0; r < peers.world; ++r)
        if (r != peers.rank)
          write_lines(lines_of(peers, r, epoch, peers.rank) + row * row_warps * 32 + at, mine,
                      epoch);
    });
  for (int row = blockIdx.x, turn = 0; row < num_rows; row += gridDim.x, turn ^= 1) {
    uint4 sum[kPieces] = {};
    float squares = 0;
    for_pieces([&](int i, int unit, int at) {
      const uint4 mine = unit < width ? x[row * width + unit] : uint4{};
      sum[i] = sum_of_ranks<T, uint4>(peers.world, [&](int r) {
        if (r == peers.rank) return mine;
        return read_lines(peers, lines_of(peers, peers.rank, epoch, r) + row * row_warps * 32 + at,
                          epoch);
      });
      if (unit >= width) return;
      x[row * width + unit] = sum[i];
      const auto part = elements<T>(sum[i]);
#pragma unroll
      for (int j = 0; j < kCount; ++j) squares += to_float(part.x[j]) * to_float(part.x[j]);
    });
    const float scale =
        rsqrtf(block_sum(squares, sums[turn]) / static_cast<float>(width * kCount) + eps);
    for_pieces([&](int i, int unit, int) {
      if (unit >= width) return;
      auto part = elements<T>(sum[i]);
#pragma unroll
      for (int j = 0; j < kCount; ++j)
        part.x[j] = from_float<T>(to_float(part.x[j]) * scale * w[i].x[j]);
      out[row * width + unit] = *reinterpret_cast<uint4*>(&part);
    });
  }
  end_epoch(peers, epoch);
}

/// Warps that a row's lines take.
int64_t sum_norm_warps(const Tensor& x) {
  const int64_t units = x.shape[1] * static_cast<int64_t>(dtype_size(x.dtype)) / 16;
  return (units + kUnitsPerWarp - 1) / kUnitsPerWarp;
}

}  // namespace

// -- launchers

bool serves_sum_norm(const Tensor& x) {
  if (x.shape[1] * static_cast<int64_t>(dtype_size(x.dtype)) % 16 != 0) return false;
  const int64_t row_warps = sum_norm_warps(x);
  return row_warps <= 32 * kMaxPieces &&
         static_cast<size_t>(x.shape[0] * row_warps * 512) <= kLinesBytes;
}

void sum_norm_lines(Launch where, const Peers& peers, Tensor out, Tensor x, const Norm& norm) {
  check_args(serves_sum_norm(x) && out.shape == x.shape && norm.weight.size() == x.shape[1] &&
                 norm.weight.dtype == DType::kF32,
             "sum_norm: wrong shapes");
  const auto row_warps = static_cast<int>(sum_norm_warps(x));
  const int threads = 32 * (row_warps <= 32 ? row_warps : (row_warps + 1) / 2);
  // All blocks are there at once, since they wait for the other ranks' blocks.
  const int64_t fit = int64_t{where.num_sms} * (1024 / threads);
  with_float_type(x.dtype, [&](auto type) {
    using T = decltype(type);
    launch(where, row_warps <= 32 ? sum_norm_lines_kernel<T, 1> : sum_norm_lines_kernel<T, 2>,
           dim3(static_cast<unsigned>(std::min(x.shape[0], fit))), threads, 0, peers,
           out.as<uint4>(), x.as<uint4>(), norm.weight.as<const float>(),
           static_cast<int>(x.shape[1] * static_cast<int64_t>(dtype_size(x.dtype)) / 16),
           static_cast<int>(x.shape[0]), norm.eps);
  });
}

}  // namespace nanovllm::cuda
