#include <algorithm>
#include <array>

#include "nanovllm/ops/cuda/collectives/exchange.cuh"

// A sum over the ranks and the norm behind it, in lines.
namespace nanovllm::cuda {
namespace {

// -- kernels

/// What becomes residual + the ranks' parts, and its norm with `weight`, where that is.
struct LineRows {
  uint4 *out, *residual;
  const uint4* part;
  const float* weight;
  int width, num_rows;  // width in units
  float eps;
  std::array<int, kMaxPeers + 1> shares;  // where each rank's row_share() begins
};

/// A row in lines: a block takes whole rows, a warp 28 units of one.
constexpr int kUnitsPerWarp = 4 * kUnitsPerLine, kMaxPieces = 2;  // of a row, for a warp
constexpr int kMaxWarps = 24;  // of a block: more would leave a thread too few registers
template <class T, int kPieces>
struct RowLines {
  static constexpr int kCount = sizeof(uint4) / sizeof(T);
  const int width;  // in units
  const int row_warps = (width + kUnitsPerWarp - 1) / kUnitsPerWarp;
  Vec<float, kCount> weight[kPieces] = {};

  __device__ RowLines(int width_, const float* weights) : width(width_) {
    for_pieces([&](int i, int unit, int) {
      if (weights != nullptr && unit < width) weight[i] = load<kCount>(weights + unit * kCount);
    });
  }
  /// Calls body(piece, unit of the row, line unit of the row); a mark's unit is `width`.
  template <class Body>
  __device__ void for_pieces(Body body) const {
    const int warp = threadIdx.x / 32, num_warps = blockDim.x / 32, lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < kPieces; ++i) {
      const int part = i * num_warps + warp;
      if (part >= row_warps) break;
      const int unit = part * kUnitsPerWarp + lane / 8 * kUnitsPerLine + lane % 8;
      body(i, lane % 8 == kUnitsPerLine || unit > width ? width : unit, part * 32 + lane);
    }
  }
  /// The row's norm in the place of the row. A call of the whole block; `sums` holds 32 floats.
  __device__ void norm(uint4 (&row)[kPieces], float eps, float* sums) const {
    float squares = 0;
    for_pieces([&](int i, int unit, int) {
      if (unit >= width) return;
      const auto part = elements<T>(row[i]);
#pragma unroll
      for (int j = 0; j < kCount; ++j) squares += to_float(part.x[j]) * to_float(part.x[j]);
    });
    const float scale = rsqrtf(block_sum(squares, sums) / static_cast<float>(width * kCount) + eps);
#pragma unroll
    for (int i = 0; i < kPieces; ++i) {
      auto part = elements<T>(row[i]);
#pragma unroll
      for (int j = 0; j < kCount; ++j)
        part.x[j] = from_float<T>(to_float(part.x[j]) * scale * weight[i].x[j]);
      row[i] = *reinterpret_cast<uint4*>(&part);
    }
  }
};

/// The addends of a row's units: the old residual, the rank's own part, and the parts that the
/// peers wrote from line `first_line` on; their sum becomes the residual.
template <class T, int kMost, int kPieces>
__device__ inline void sum_row(const Peers& peers, uint32_t epoch,
                               const RowLines<T, kPieces>& lines, uint4* residual,
                               const uint4* part, int first_line, uint4 (&sum)[kPieces]) {
  lines.for_pieces([&](int i, int unit, int at) {
    const bool is_mark = unit >= lines.width;
    const uint4 mine = is_mark ? uint4{} : part[unit];
    const uint4 old = is_mark ? uint4{} : residual[unit];
    uint4 units[kMost];
    read_lines(peers, epoch, first_line + at, units);
    sum[i] = sum_of_ranks<T, kMost, uint4>(
        peers.world, [&](int r) { return r == peers.rank ? mine : units[r]; }, old);
    if (!is_mark) residual[unit] = sum[i];
  });
}

/// Every rank adds up all rows. out may be part or, without a norm, residual.
template <class T, int kMost, int kPieces>
__global__ void __launch_bounds__(kMaxWarps * 32)
    sum_norm_one_hop_kernel(const __grid_constant__ Peers peers,
                            const __grid_constant__ LineRows rows) {
  __shared__ float sums[2][32];
  const RowLines<T, kPieces> lines(rows.width, rows.weight);
  const int row_units = lines.row_warps * 32;
  begin_kernel();
  const uint32_t epoch = current_epoch(peers);
  for (int row = blockIdx.x; row < rows.num_rows; row += gridDim.x)
    lines.for_pieces([&](int, int unit, int at) {
      const uint4 mine = unit < rows.width ? rows.part[row * rows.width + unit] : uint4{};
      for_peers<kMost>(peers, [&](int r) {
        write_lines(lines_of(peers, r, epoch, peers.rank) + row * row_units + at, mine, epoch);
      });
    });
  for (int row = blockIdx.x, turn = 0; row < rows.num_rows; row += gridDim.x, turn ^= 1) {
    uint4 sum[kPieces] = {};
    sum_row<T, kMost>(peers, epoch, lines, rows.residual + row * rows.width,
                      rows.part + row * rows.width, row * row_units, sum);
    if (rows.weight != nullptr) lines.norm(sum, rows.eps, sums[turn]);
    lines.for_pieces([&](int i, int unit, int) {
      if (unit < rows.width) rows.out[row * rows.width + unit] = sum[i];
    });
  }
  end_epoch(peers, epoch);
}

/// In two hops: row i of every rank's share is block i's, who sends the others' to their ranks,
/// adds up and norms its own rank's, sends that to all, and takes in the others'.
template <class T, int kMost, int kPieces>
__global__ void __launch_bounds__(kMaxWarps * 32)
    sum_norm_two_hops_kernel(const __grid_constant__ Peers peers,
                             const __grid_constant__ LineRows rows) {
  __shared__ float sums[2][32];
  const RowLines<T, kPieces> lines(rows.width, rows.weight);
  const int most = (rows.num_rows + peers.world - 1) / peers.world;  // rows of a share
  // Row i of rank r's share, or no row.
  const auto row_of = [&](int r, int i) {
    const int row = rows.shares[r] + i;
    return row < rows.shares[r + 1] ? row : -1;
  };
  const auto line_of = [&](int hop, int i) { return (hop * most + i) * lines.row_warps * 32; };
  begin_kernel();
  const uint32_t epoch = current_epoch(peers);
  for (int i = blockIdx.x; i < most; i += gridDim.x)
    lines.for_pieces([&](int, int unit, int at) {
      uint4 units[kMost] = {};
      for_peers<kMost>(peers, [&](int r) {
        if (const int row = row_of(r, i); row >= 0 && unit < rows.width)
          units[r] = rows.part[row * rows.width + unit];
      });
      for_peers<kMost>(peers, [&](int r) {
        if (row_of(r, i) < 0) return;
        write_lines(lines_of(peers, r, epoch, peers.rank) + line_of(0, i) + at, units[r], epoch);
      });
    });
  for (int i = blockIdx.x, turn = 0; i < most; i += gridDim.x, turn ^= 1) {
    const int row = row_of(peers.rank, i);
    if (row < 0) break;
    uint4 sum[kPieces] = {};
    sum_row<T, kMost>(peers, epoch, lines, rows.residual + row * rows.width,
                      rows.part + row * rows.width, line_of(0, i), sum);
    if (rows.weight != nullptr) lines.norm(sum, rows.eps, sums[turn]);
    lines.for_pieces([&](int piece, int unit, int at) {
      for_peers<kMost>(peers, [&](int r) {
        write_lines(lines_of(peers, r, epoch, peers.rank) + line_of(1, i) + at, sum[piece], epoch);
      });
      if (unit < rows.width) rows.out[row * rows.width + unit] = sum[piece];
    });
  }
  for (int i = blockIdx.x; i < most; i += gridDim.x) {
    uint32_t writers = 0;
    for_peers<kMost>(peers, [&](int r) { writers |= (row_of(r, i) >= 0 ? 1u : 0u) << r; });
    lines.for_pieces([&](int, int unit, int at) {
      uint4 units[kMost];
      read_lines(peers, epoch, line_of(1, i) + at, units, writers);
      if (unit >= rows.width) return;
      for_peers<kMost>(peers, [&](int r) {
        if (writers >> r & 1) rows.out[row_of(r, i) * rows.width + unit] = units[r];
      });
    });
  }
  end_epoch(peers, epoch);
}

/// Warps that a row's lines take.
int64_t sum_norm_warps(const Tensor& x) {
  const int64_t units = x.shape[1] * static_cast<int64_t>(dtype_size(x.dtype)) / 16;
  return (units + kUnitsPerWarp - 1) / kUnitsPerWarp;
}

/// The lines kernel of one or two hops, a block for each of `num_blocks` rows or for some of them:
/// all blocks are there at once, since they wait for the other ranks'.
void launch_lines(Launch where, const Peers& peers, bool two_hops, const SumNormArgs& args,
                  int64_t num_blocks) {
  const Tensor& x = args.part;
  check_args(args.out.shape == x.shape && args.residual.shape == x.shape &&
                 (!args.norm.weight ||
                  (args.norm.weight.size() == x.shape[1] && args.norm.weight.dtype == DType::kF32)),
             "sum_norm: wrong shapes");
  const auto row_warps = static_cast<int>(sum_norm_warps(x));
  const int threads = 32 * (row_warps <= kMaxWarps ? row_warps : (row_warps + 1) / 2);
  const int64_t fit = int64_t{where.num_sms} * std::min(kMaxWarps * 32 / threads, 16);
  LineRows rows = {
      .out = args.out.as<uint4>(),
      .residual = args.residual.as<uint4>(),
      .part = x.as<const uint4>(),
      .weight = args.norm.weight.as<const float>(),
      .width = static_cast<int>(x.shape[1] * static_cast<int64_t>(dtype_size(x.dtype)) / 16),
      .num_rows = static_cast<int>(x.shape[0]),
      .eps = args.norm.eps,
      .shares = {}};
  for (int r = 0; r < peers.world; ++r) {
    const Range share = row_share(x.shape[0], {r, peers.world});
    rows.shares[static_cast<size_t>(r)] = static_cast<int>(share.first);
    rows.shares[static_cast<size_t>(r) + 1] = static_cast<int>(share.first + share.count);
  }
  with_float_type(x.dtype, [&](auto type) {
    with_most_ranks(peers.world, [&](auto most) {
      using T = decltype(type);
      const auto run = [&](auto one, auto two) {
        launch(where, row_warps <= kMaxWarps ? one : two,
               dim3(static_cast<unsigned>(std::min(num_blocks, fit))), threads, 0, peers, rows);
      };
      if (two_hops)
        run(sum_norm_two_hops_kernel<T, most(), 1>, sum_norm_two_hops_kernel<T, most(), 2>);
      else run(sum_norm_one_hop_kernel<T, most(), 1>, sum_norm_one_hop_kernel<T, most(), 2>);
    });
  });
}

}  // namespace

// -- launchers

bool serves_one_hop(const Tensor& x) {
  if (x.shape[1] * static_cast<int64_t>(dtype_size(x.dtype)) % 16 != 0) return false;
  const int64_t row_warps = sum_norm_warps(x);
  return row_warps <= kMaxWarps * kMaxPieces &&
         static_cast<size_t>(x.shape[0] * row_warps * 512) <= kLinesBytes;
}

void sum_norm_one_hop(Launch where, const Peers& peers, const SumNormArgs& args) {
  check_args(serves_one_hop(args.part), "sum_norm: wrong shapes");
  launch_lines(where, peers, false, args, args.part.shape[0]);
}

bool serves_two_hops(const Tensor& x, int world) {
  // Both hops' lines of a share lie beside each other.
  const int64_t most = (x.shape[0] + world - 1) / world;
  return serves_one_hop(x) && serves_one_hop(Tensor(nullptr, x.dtype, 2 * most, x.shape[1]));
}

void sum_norm_two_hops(Launch where, const Peers& peers, const SumNormArgs& args) {
  check_args(serves_two_hops(args.part, peers.world), "sum_norm: wrong shapes");
  launch_lines(where, peers, true, args, (args.part.shape[0] + peers.world - 1) / peers.world);
}

}  // namespace nanovllm::cuda
