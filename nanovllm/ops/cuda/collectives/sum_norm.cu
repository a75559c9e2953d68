#include <algorithm>
#include <array>

#include "nanovllm/ops/cuda/collectives/exchange.cuh"

//   residual += sum over the ranks of part,  out = rms_norm(residual)  (or residual)
// with residual, part and out [rows, columns]: an all-reduce by LL128 (exchange.cuh), the addition
// of the old residual, and the norm in one kernel. A thread block processes whole rows, so that it
// has the complete row when the peers' lines have arrived; each of its warps has up to two parts of
// a row. Small messages are bound by the latency of the links between the GPUs, larger ones by
// their bandwidth.
namespace nanovllm::cuda {
namespace {

// -- layout

struct SumNormParams {
  uint4 *out, *residual;  // [num_rows, width]
  const uint4* part;      // [num_rows, width]
  const float* weight;    // [columns] or null: no norm
  int width, num_rows;    // the width is in units of 16 bytes
  float eps;
  std::array<int, kMaxPeers + 1> first_rows;  // where each rank's row_share() begins
};

// A row is sent as whole warps of 28 units. A warp has up to two such parts of each row.
constexpr int kUnitsPerWarp = 4 * kUnitsPerLine, kMaxUnitsPerThread = 2;
constexpr int kMaxWarps = 24;  // more in a thread block would leave a thread too few registers

/// Which kUnits units of a row a thread has, and the norm's weights for them.
template <class T, int kUnits>
struct RowLines {
  const int width;  // in units of 16 bytes
  const int row_warps = (width + kUnitsPerWarp - 1) / kUnitsPerWarp;
  Vec<float, kPer16Bytes<T>> weight[kUnits] = {};

  __device__ RowLines(int width_, const float* weights) : width(width_) {
    for_units([&](int i, int unit, int) {
      if (weights != nullptr && unit < width)
        weight[i] = load<kPer16Bytes<T>>(weights + unit * kPer16Bytes<T>);
    });
  }
  /// Calls body(i, unit, at) for the thread's i-th unit. `unit` is the index in the row, or `width`
  /// for a flag and for the padding of the last line; `at` is the index in the row's lines.
  template <class Body>
  __device__ void for_units(Body body) const {
    const int warp = threadIdx.x / 32, num_warps = blockDim.x / 32, lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < kUnits; ++i) {
      const int row_warp = i * num_warps + warp;
      if (row_warp >= row_warps) break;
      const int unit = row_warp * kUnitsPerWarp + lane / 8 * kUnitsPerLine + lane % 8;
      body(i, lane % 8 == kUnitsPerLine || unit > width ? width : unit, row_warp * 32 + lane);
    }
  }
  /// Replaces the row by its norm. The whole thread block calls this; `sums` holds 32 floats.
  __device__ void norm(uint4 (&row)[kUnits], float eps, float* sums) const {
    float squares = 0;
    for_units([&](int i, int unit, int) {
      if (unit < width) squares = add_squares(elements<T>(row[i]), squares);
    });
    const float factor =
        rms_factor(block_reduce(squares, sums, Sum()), width * kPer16Bytes<T>, eps);
#pragma unroll
    for (int i = 0; i < kUnits; ++i)
      row[i] = bits_as<uint4>(normed(elements<T>(row[i]), factor, weight[i]));
  }
};

// -- kernels

/// sum = residual = residual + this rank's part + the parts that the peers sent to the lines from
/// `first_line` on, for one row.
template <class T, int kMaxWorld, int kUnits>
__device__ inline void sum_row(const Peers& peers, uint32_t epoch, const RowLines<T, kUnits>& lines,
                               uint4* residual, const uint4* part, int first_line,
                               uint4 (&sum)[kUnits]) {
  lines.for_units([&](int i, int unit, int at) {
    const bool is_data = unit < lines.width;
    const uint4 mine = is_data ? part[unit] : uint4{};
    const uint4 old = is_data ? residual[unit] : uint4{};
    uint4 units[kMaxWorld];
    read_lines(peers, epoch, first_line + at, units);
    sum[i] = sum_of_ranks<T, kMaxWorld>(
        peers.world, [&](int r) { return r == peers.rank ? mine : units[r]; }, old);
    if (is_data) residual[unit] = sum[i];
  });
}

/// One-shot: every rank sends all rows to all others and sums all rows. Thread block b has rows b,
/// b + gridDim.x, and so on. `out` may be part or, without a norm, residual.
template <class T, int kMaxWorld, int kUnits>
__global__ void __launch_bounds__(kMaxWarps * 32)
    sum_norm_one_shot_kernel(const __grid_constant__ Peers peers,
                             const __grid_constant__ SumNormParams p) {
  __shared__ float sums[2][32];  // rows use them in turn
  const RowLines<T, kUnits> lines(p.width, p.weight);
  const int row_units = lines.row_warps * 32;
  begin_kernel();
  const uint32_t epoch = current_epoch(peers);
  for (int row = blockIdx.x; row < p.num_rows; row += gridDim.x)
    lines.for_units([&](int, int unit, int at) {
      const uint4 mine = unit < p.width ? p.part[row * p.width + unit] : uint4{};
      for_peers<kMaxWorld>(peers, [&](int r) {
        write_line(lines_of(peers, r, epoch, peers.rank) + row * row_units + at, mine, epoch);
      });
    });
  for (int row = blockIdx.x, turn = 0; row < p.num_rows; row += gridDim.x, turn ^= 1) {
    uint4 sum[kUnits] = {};
    sum_row<T, kMaxWorld>(peers, epoch, lines, p.residual + row * p.width, p.part + row * p.width,
                          row * row_units, sum);
    if (p.weight != nullptr) lines.norm(sum, p.eps, sums[turn]);
    lines.for_units([&](int i, int unit, int) {
      if (unit < p.width) p.out[row * p.width + unit] = sum[i];
    });
  }
  end_epoch(peers, epoch);
}

/// Two-shot: thread block i has row i of every rank's share. It sends the others' rows to their
/// ranks, sums and norms its own rank's row, sends that to all, and receives the others'.
template <class T, int kMaxWorld, int kUnits>
__global__ void __launch_bounds__(kMaxWarps * 32)
    sum_norm_two_shot_kernel(const __grid_constant__ Peers peers,
                             const __grid_constant__ SumNormParams p) {
  __shared__ float sums[2][32];
  const RowLines<T, kUnits> lines(p.width, p.weight);
  const int most = (p.num_rows + peers.world - 1) / peers.world;  // rows of a share
  // The row that is number i of rank r's share, or -1 if there is none.
  const auto row_of = [&](int r, int i) {
    const int row = p.first_rows[r] + i;
    return row < p.first_rows[r + 1] ? row : -1;
  };
  const auto line_of = [&](int phase, int i) { return (phase * most + i) * lines.row_warps * 32; };
  begin_kernel();
  const uint32_t epoch = current_epoch(peers);
  for (int i = blockIdx.x; i < most; i += gridDim.x)
    lines.for_units([&](int, int unit, int at) {
      uint4 units[kMaxWorld] = {};
      for_peers<kMaxWorld>(peers, [&](int r) {
        if (const int row = row_of(r, i); row >= 0 && unit < p.width)
          units[r] = p.part[row * p.width + unit];
      });
      for_peers<kMaxWorld>(peers, [&](int r) {
        if (row_of(r, i) < 0) return;
        write_line(lines_of(peers, r, epoch, peers.rank) + line_of(0, i) + at, units[r], epoch);
      });
    });
  for (int i = blockIdx.x, turn = 0; i < most; i += gridDim.x, turn ^= 1) {
    const int row = row_of(peers.rank, i);
    if (row < 0) break;
    uint4 sum[kUnits] = {};
    sum_row<T, kMaxWorld>(peers, epoch, lines, p.residual + row * p.width, p.part + row * p.width,
                          line_of(0, i), sum);
    if (p.weight != nullptr) lines.norm(sum, p.eps, sums[turn]);
    lines.for_units([&](int j, int unit, int at) {
      for_peers<kMaxWorld>(peers, [&](int r) {
        write_line(lines_of(peers, r, epoch, peers.rank) + line_of(1, i) + at, sum[j], epoch);
      });
      if (unit < p.width) p.out[row * p.width + unit] = sum[j];
    });
  }
  for (int i = blockIdx.x; i < most; i += gridDim.x) {
    uint32_t writers = 0;
    for_peers<kMaxWorld>(peers, [&](int r) { writers |= (row_of(r, i) >= 0 ? 1u : 0u) << r; });
    lines.for_units([&](int, int unit, int at) {
      uint4 units[kMaxWorld];
      read_lines(peers, epoch, line_of(1, i) + at, units, writers);
      if (unit >= p.width) return;
      for_peers<kMaxWorld>(peers, [&](int r) {
        if (writers >> r & 1) p.out[row_of(r, i) * p.width + unit] = units[r];
      });
    });
  }
  end_epoch(peers, epoch);
}

// -- launchers

int64_t units_of_row(const Tensor& x) {
  return x.shape[1] * static_cast<int64_t>(dtype_size(x.dtype)) /
         static_cast<int64_t>(sizeof(uint4));
}
int64_t warps_of_row(const Tensor& x) {
  return (units_of_row(x) + kUnitsPerWarp - 1) / kUnitsPerWarp;
}

}  // namespace

bool supports_one_shot(const Tensor& x) {
  if (x.shape[1] * static_cast<int64_t>(dtype_size(x.dtype)) % 16 != 0) return false;
  constexpr int64_t kWarpBytes = 32 * sizeof(uint4);
  const int64_t row_warps = warps_of_row(x);
  return row_warps <= kMaxWarps * kMaxUnitsPerThread &&
         static_cast<size_t>(x.shape[0] * row_warps * kWarpBytes) <= kLinesBytes;
}

bool supports_two_shot(const Tensor& x, int world) {
  // The lines of the addends and those of the sums of a share are next to each other.
  const int64_t most = (x.shape[0] + world - 1) / world;
  return supports_one_shot(x) && supports_one_shot(Tensor(nullptr, x.dtype, 2 * most, x.shape[1]));
}

void sum_norm_ll128(Launch where, const Peers& peers, bool two_shot, const SumNormArgs& args) {
  const Tensor& x = args.part;
  check_args(two_shot ? supports_two_shot(x, peers.world) : supports_one_shot(x),
             "sum_norm_ll128: rows must be multiples of 16 bytes, and all of them up to 4 MiB");
  check_args(
      args.out.shape == x.shape && args.residual.shape == x.shape &&
          (!args.norm.weight ||
           (args.norm.weight.size() == x.shape[1] && args.norm.weight.dtype == DType::kF32)),
      "sum_norm_ll128: out and residual must be of part's shape, the weight float32 [columns]");
  const auto row_warps = static_cast<int>(warps_of_row(x));
  const int threads = 32 * (row_warps <= kMaxWarps ? row_warps : (row_warps + 1) / 2);
  SumNormParams params = {.out = args.out.as<uint4>(),
                          .residual = args.residual.as<uint4>(),
                          .part = x.as<const uint4>(),
                          .weight = args.norm.weight.as<const float>(),
                          .width = static_cast<int>(units_of_row(x)),
                          .num_rows = static_cast<int>(x.shape[0]),
                          .eps = args.norm.eps,
                          .first_rows = {}};
  for (int r = 0; r < peers.world; ++r) {
    const Range share = row_share(x.shape[0], {r, peers.world});
    params.first_rows[static_cast<size_t>(r) + 1] = static_cast<int>(share.first + share.count);
  }
  // A thread block for each row of the rank, or fewer: all of them must run at the same time,
  // because they wait for the other ranks' thread blocks.
  const int64_t rows = two_shot ? (x.shape[0] + peers.world - 1) / peers.world : x.shape[0];
  const int64_t fit = int64_t{where.num_sms} * std::min(kMaxWarps * 32 / threads, 16);
  with_float_type(x.dtype, [&](auto type) {
    with_max_world(peers.world, [&](auto max_world) {
      using T = decltype(type);
      const auto run = [&](auto one_unit, auto two_units) {
        launch(where, row_warps <= kMaxWarps ? one_unit : two_units,
               blocks_for(std::min(rows, fit)), threads, 0, peers, params);
      };
      if (two_shot)
        run(sum_norm_two_shot_kernel<T, max_world(), 1>,
            sum_norm_two_shot_kernel<T, max_world(), 2>);
      else
        run(sum_norm_one_shot_kernel<T, max_world(), 1>,
            sum_norm_one_shot_kernel<T, max_world(), 2>);
    });
  });
}

}  // namespace nanovllm::cuda
