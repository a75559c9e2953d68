#include <algorithm>
#include <array>

#include "nanovllm/ops/cuda/collectives/exchange.cuh"

//   x = sum over the ranks of their x,  out = rms_norm(x)
// for many rows, an all-reduce and its norm in one kernel: each rank sums its share of the rows of
// x [rows, columns], which it reads from all ranks' memory, and writes the normed rows to all
// ranks' out. A thread block takes row after row of the share, with all of its threads. The
// bandwidth of the links between the GPUs bounds it.
namespace nanovllm::cuda {
namespace {

// -- layout

constexpr int kMaxThreads = 1024, kMaxUnitsPerThread = 2;

struct RowExchange {
  std::array<uint4*, kMaxPeers> xs = {}, outs = {};  // every rank's [rows, width], as mapped here
  const float* weight;                               // [columns]
  int width, first_row, end_row;  // units of 16 bytes in a row; this rank's share of the rows
  float eps;
};

// -- kernel

/// A thread has kUnits units of each row of its thread block. The units of the next row are loaded
/// while this row is summed and normed.
template <class T, int kMaxWorld, int kUnits>
__global__ void __launch_bounds__(kMaxThreads)
    sum_norm_rows_kernel(const __grid_constant__ Peers peers,
                         const __grid_constant__ RowExchange p) {
  constexpr int kCount = kPer16Bytes<T>;
  __shared__ float sums[2][32];  // rows use them in turn, so that one barrier a row is enough
  const auto unit_at = [&](int i) { return static_cast<int>(i * blockDim.x + threadIdx.x); };
  Vec<float, kCount> weight[kUnits] = {};
#pragma unroll
  for (int i = 0; i < kUnits; ++i)
    if (unit_at(i) < p.width) weight[i] = load<kCount>(p.weight + unit_at(i) * kCount);
  begin_kernel();
  const uint32_t epoch = current_epoch(peers);
  rank_barrier(peers, 0, epoch);  // every rank's x has been written
  uint4 next[kUnits][kMaxWorld];
  const auto read = [&](int row) {
    if (row >= p.end_row) return;
#pragma unroll
    for (int i = 0; i < kUnits; ++i)
#pragma unroll
      for (int r = 0; r < kMaxWorld; ++r)
        if (r < peers.world && unit_at(i) < p.width)
          next[i][r] = load_volatile(p.xs[r] + int64_t{row} * p.width + unit_at(i));
  };
  const int first = p.first_row + static_cast<int>(blockIdx.x);
  read(first);
  for (int row = first, turn = 0; row < p.end_row; row += gridDim.x, turn ^= 1) {
    uint4 sum[kUnits];
    float squares = 0;
#pragma unroll
    for (int i = 0; i < kUnits; ++i) {
      if (unit_at(i) >= p.width) continue;
      sum[i] = sum_of_ranks<T, kMaxWorld>(peers.world, [&](int r) { return next[i][r]; });
      squares = add_squares(elements<T>(sum[i]), squares);
    }
    read(row + gridDim.x);
    const float factor =
        rms_factor(block_reduce(squares, sums[turn], Sum()), p.width * kCount, p.eps);
#pragma unroll
    for (int i = 0; i < kUnits; ++i) {
      if (unit_at(i) >= p.width) continue;
      const int64_t at = int64_t{row} * p.width + unit_at(i);
      p.xs[peers.rank][at] = sum[i];
      const auto y = bits_as<uint4>(normed(elements<T>(sum[i]), factor, weight[i]));
#pragma unroll
      for (int r = 0; r < kMaxWorld; ++r)
        if (r < peers.world) p.outs[r][at] = y;
    }
  }
  rank_barrier(peers, 1, epoch);  // out is complete, and all ranks have read x
  end_epoch(peers, epoch);
}

}  // namespace

// -- launcher

bool supports_sum_norm_rows(const Tensor& x) {
  const int64_t row_bytes = x.shape[1] * static_cast<int64_t>(dtype_size(x.dtype));
  return row_bytes % 16 == 0 && row_bytes / 16 <= kMaxUnitsPerThread * kMaxThreads &&
         x.bytes() > kLl128Bytes;
}

void sum_norm_rows(Launch where, const Peers& peers, const PeerTensor& out, const PeerTensor& x,
                   const Norm& norm) {
  const Tensor& t = x.tensor;
  check_args(supports_sum_norm_rows(t) && out.tensor.shape == t.shape &&
                 norm.weight.size() == t.shape[1] && norm.weight.dtype == DType::kF32,
             "sum_norm_rows: x must be more than 4 MiB in rows of a multiple of 16 bytes up to "
             "32 KiB, out of its shape, the weight float32 [columns]");
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
  const int units = params.width <= kMaxThreads ? 1 : 2;
  const int threads = ((params.width + units - 1) / units + 31) / 32 * 32;
  with_float_type(t.dtype, [&](auto type) {
    using T = decltype(type);
    with_max_world(peers.world, [&](auto max_world) {
      // All thread blocks must run at the same time, because they wait for those of the other
      // ranks.
      launch(where,
             units == 1 ? sum_norm_rows_kernel<T, max_world(), 1>
                        : sum_norm_rows_kernel<T, max_world(), 2>,
             blocks_for(std::min(kTwoShotBlocks, where.num_sms)), threads, 0, peers, params);
    });
  });
}

}  // namespace nanovllm::cuda
