#include <algorithm>
#include <array>

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

/// Of many rows each rank sums its slice of them, reading the peers' x, and hands the normed rows
/// to all, writing the peers' out: `xs` and `outs` are every rank's, as mapped here.
struct RowExchange {
  std::array<uint4*, kMaxPeers> xs = {}, outs = {};
  const float* weight;
  int width, first_row, end_row;  // width in units; the slice
  float eps;
};
template <class T, int kWorld, int kPieces>
__global__ void __launch_bounds__(1024)
    sum_norm_rows_kernel(const Peers peers, const RowExchange p) {
  constexpr int kCount = sizeof(uint4) / sizeof(T);
  __shared__ float sums[2][32];
  Vec<float, kCount> w[kPieces] = {};
#pragma unroll
  for (int i = 0; i < kPieces; ++i)
    if (const int unit = i * blockDim.x + threadIdx.x; unit < p.width)
      w[i] = load<kCount>(p.weight + unit * kCount);
  begin_kernel();
  const uint32_t epoch = current_epoch(peers);
  meet(peers, 0, epoch);  // every rank's x is there
  uint4 next[kPieces][kWorld];
  const auto read = [&](int row) {
    if (row >= p.end_row) return;
#pragma unroll
    for (int i = 0; i < kPieces; ++i)
#pragma unroll
      for (int r = 0; r < kWorld; ++r)
        if (const int unit = i * blockDim.x + threadIdx.x; unit < p.width)
          next[i][r] = load_fresh(p.xs[r] + int64_t{row} * p.width + unit);
  };
  const int first = p.first_row + static_cast<int>(blockIdx.x);
  read(first);
  for (int row = first, turn = 0; row < p.end_row; row += gridDim.x, turn ^= 1) {
    uint4 sum[kPieces];
    float squares = 0;
#pragma unroll
    for (int i = 0; i < kPieces; ++i) {
      const int unit = i * blockDim.x + threadIdx.x;
      if (unit >= p.width) continue;
      sum[i] = sum_of_ranks<T, uint4>(kWorld, [&](int r) { return next[i][r]; });
      const auto part = elements<T>(sum[i]);
#pragma unroll
      for (int j = 0; j < kCount; ++j) squares += to_float(part.x[j]) * to_float(part.x[j]);
    }
    read(row + gridDim.x);
    const float scale =
        rsqrtf(block_sum(squares, sums[turn]) / static_cast<float>(p.width * kCount) + p.eps);
#pragma unroll
    for (int i = 0; i < kPieces; ++i) {
      const int unit = i * blockDim.x + threadIdx.x;
      if (unit >= p.width) continue;
      const int64_t at = int64_t{row} * p.width + unit;
      p.xs[peers.rank][at] = sum[i];
      auto part = elements<T>(sum[i]);
#pragma unroll
      for (int j = 0; j < kCount; ++j)
        part.x[j] = from_float<T>(to_float(part.x[j]) * scale * w[i].x[j]);
#pragma unroll
      for (int r = 0; r < kWorld; ++r) p.outs[r][at] = *reinterpret_cast<uint4*>(&part);
    }
  }
  meet(peers, 1, epoch);  // and every rank's part of out, and nobody reads x any more
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

bool serves_sum_norm_rows(const Tensor& x, int world) {
  const int64_t row_bytes = x.shape[1] * static_cast<int64_t>(dtype_size(x.dtype));
  return row_bytes % 16 == 0 && row_bytes / 16 <= 2 * 1024 && x.bytes() > kLineBytes &&
         (world == 2 || world == 4 || world == 8);
}

void sum_norm_rows(Launch where, const Peers& peers, const PeerTensor& out, const PeerTensor& x,
                   const Norm& norm) {
  const Tensor& t = x.tensor;
  check_args(serves_sum_norm_rows(t, peers.world) && out.tensor.shape == t.shape &&
                 norm.weight.size() == t.shape[1] && norm.weight.dtype == DType::kF32,
             "sum_norm: wrong shapes");
  const Range rows = row_share(t.shape[0], {peers.rank, peers.world});
  RowExchange params = {
      .weight = norm.weight.as<const float>(),
      .width = static_cast<int>(t.shape[1] * static_cast<int64_t>(dtype_size(t.dtype)) / 16),
      .first_row = static_cast<int>(rows.first),
      .end_row = static_cast<int>(rows.first + rows.count),
      .eps = norm.eps};
  for (size_t r = 0; r < params.xs.size(); ++r) {
    params.xs[r] = reinterpret_cast<uint4*>(x.data[r]);
    params.outs[r] = reinterpret_cast<uint4*>(out.data[r]);
  }
  const int pieces = params.width <= 1024 ? 1 : 2;
  const int threads = ((params.width + pieces - 1) / pieces + 31) / 32 * 32;
  with_float_type(t.dtype, [&](auto type) {
    using T = decltype(type);
    const auto run = [&](auto one, auto two) {
      // As many blocks as are there at once: they wait for the other ranks'.
      launch(where, pieces == 1 ? one : two,
             dim3(static_cast<unsigned>(std::min(kSlicedBlocks, where.num_sms))), threads, 0, peers,
             params);
    };
    if (peers.world == 2) run(sum_norm_rows_kernel<T, 2, 1>, sum_norm_rows_kernel<T, 2, 2>);
    else if (peers.world == 4) run(sum_norm_rows_kernel<T, 4, 1>, sum_norm_rows_kernel<T, 4, 2>);
    else run(sum_norm_rows_kernel<T, 8, 1>, sum_norm_rows_kernel<T, 8, 2>);
  });
}

}  // namespace nanovllm::cuda
