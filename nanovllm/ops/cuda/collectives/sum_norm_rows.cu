#include <algorithm>
#include <array>

#include "nanovllm/ops/cuda/collectives/exchange.cuh"

// A sum of many rows over the ranks and the norm behind it, through the peers' memory.
namespace nanovllm::cuda {
namespace {

// -- kernel

/// Of many rows each rank sums its slice of them, reading the peers' x, and hands the normed rows
/// to all, writing the peers' out: `xs` and `outs` are every rank's, as mapped here.
struct RowExchange {
  std::array<uint4*, kMaxPeers> xs = {}, outs = {};
  const float* weight;
  int width, first_row, end_row;  // width in units; the slice
  float eps;
};
template <class T, int kMost, int kPieces>
__global__ void __launch_bounds__(1024)
    sum_norm_rows_kernel(const __grid_constant__ Peers peers,
                         const __grid_constant__ RowExchange p) {
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
  uint4 next[kPieces][kMost];
  const auto read = [&](int row) {
    if (row >= p.end_row) return;
#pragma unroll
    for (int i = 0; i < kPieces; ++i)
#pragma unroll
      for (int r = 0; r < kMost; ++r)
        if (const int unit = i * blockDim.x + threadIdx.x; r < peers.world && unit < p.width)
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
      sum[i] = sum_of_ranks<T, kMost, uint4>(peers.world, [&](int r) { return next[i][r]; });
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
      for (int r = 0; r < kMost; ++r)
        if (r < peers.world) p.outs[r][at] = *reinterpret_cast<uint4*>(&part);
    }
  }
  meet(peers, 1, epoch);  // and every rank's part of out, and nobody reads x any more
  end_epoch(peers, epoch);
}

}  // namespace

// -- launcher

bool serves_sum_norm_rows(const Tensor& x) {
  const int64_t row_bytes = x.shape[1] * static_cast<int64_t>(dtype_size(x.dtype));
  return row_bytes % 16 == 0 && row_bytes / 16 <= 2 * 1024 && x.bytes() > kLineBytes;
}

void sum_norm_rows(Launch where, const Peers& peers, const PeerTensor& out, const PeerTensor& x,
                   const Norm& norm) {
  const Tensor& t = x.tensor;
  check_args(serves_sum_norm_rows(t) && out.tensor.shape == t.shape &&
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
    with_most_ranks(peers.world, [&](auto most) {
      // As many blocks as are there at once: they wait for the other ranks'.
      launch(where,
             pieces == 1 ? sum_norm_rows_kernel<T, most(), 1> : sum_norm_rows_kernel<T, most(), 2>,
             dim3(static_cast<unsigned>(std::min(kSlicedBlocks, where.num_sms))), threads, 0, peers,
             params);
    });
  });
}

}  // namespace nanovllm::cuda
