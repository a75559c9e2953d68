#include "nanovllm/ops/cuda/gemm/grouped_gemm.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "nanovllm/ops/cuda/gemm/hopper/tile_kernel.cuh"

//   out[i] = x[i] w[g]^T, or the SwiGLU of its gates and ups, for each row i of group g
// (grouped GEMM), where w is [num_groups, n or 2 n, k]. A list of tiles, each some rows of one
// group, comes from an earlier kernel, since only the device knows the groups. On Hopper the kernel
// is that of tile_gemm.cu, which takes its tiles from that list (GroupedOrder). Groups of few rows
// are bound by reading the weights of all groups that have rows, groups of many rows by the tensor
// cores. Other GPUs and dtypes use a plain kernel.
#pragma nv_diag_suppress 177  // unused functions when compiling for other targets than Hopper
namespace nanovllm::cuda {
namespace {

// -- Hopper

/// tile_kernel() with the tiles of the list.
template <TileConfig kConfig>
void run_groups(Launch where, const GroupedGemm& gemm) {
  using T = TileOf<PlainFormat<Bf16>, kConfig>;
  const GemmArgs& args = gemm.args;
  const int rows = T::kSwiglu ? 2 * args.n : args.n;
  const TileParams params = {
      .w = tensor_map(args.w, int64_t{gemm.num_groups} * rows, args.k, T::kBoxRows),
      .x = tensor_map(args.x, args.num_tokens, args.k, T::kHalfTokens),
      .args = args,
      .group = 1,
      .split_bits = 0,
      .scratch = {},
      .groups = gemm.groups};
  // Each group may have a tile with few tokens.
  const int most_tiles = std::min(args.num_tokens, args.num_tokens / T::kTokens + gemm.num_groups);
  const int fitting = std::min(fit<T, GroupedOrder<T>>(), where.num_sms) / 2 * 2;
  launch_tiles<T, GroupedOrder<T>>(where, std::min(fitting, most_tiles * kConfig.blocks(1, args.n)),
                                   params);
}

/// A tile that is compiled for grouped GEMMs.
struct GroupTile {
  TileConfig config;
  void (*run)(Launch, const GroupedGemm&);
};
template <int kTokens, int kRows, bool kSwiglu>
constexpr GroupTile group_tile() {
  constexpr TileConfig kConfig = {kTokens, kRows, kSwiglu};
  return {kConfig, run_groups<kConfig>};
}
constexpr std::array kGroupTiles = {
    group_tile<64, 64, false>(),   group_tile<64, 96, false>(),  group_tile<64, 128, false>(),
    group_tile<64, 160, false>(),  group_tile<128, 96, false>(), group_tile<128, 128, false>(),
    group_tile<128, 160, false>(), group_tile<256, 96, false>(), group_tile<256, 128, false>(),
    group_tile<64, 96, true>(),    group_tile<64, 128, true>(),  group_tile<64, 160, true>(),
    group_tile<64, 192, true>(),   group_tile<128, 128, true>(), group_tile<128, 192, true>(),
    group_tile<128, 224, true>(),  group_tile<256, 128, true>(), group_tile<256, 192, true>()};

/// About how many clock cycles the GEMM takes with this tile: rounds of thread blocks, in each of
/// which a multiprocessor reads its share of w or multiplies, whichever takes longer. It supposes
/// that tokens choose their groups evenly.
double grouped_cost(const GroupedGemm& gemm, const TileConfig& tile, int num_sms) {
  constexpr double kBytesPerCycle = 19, kMultipliesPerCycle = 1600, kItemCycles = 1500;
  const GemmArgs& args = gemm.args;
  const double groups = std::min(args.num_tokens, gemm.num_groups);
  const double per_group = args.num_tokens / groups;
  const double tiles = groups * std::max(1.0, per_group / tile.tokens + (per_group > 32 ? 0.5 : 0));
  const double items = tiles * tile.blocks(1, args.n);
  const double read = tile.rows * 2.0 * args.k / kBytesPerCycle;
  const double multiply = double{1.0 * tile.tokens} * tile.rows * args.k / kMultipliesPerCycle;
  const double rounds = std::ceil(items / (num_sms / 2 * 2));
  return rounds * (std::max(read, multiply) + kItemCycles);
}

// -- other GPUs and dtypes

constexpr int kPlainTokens = 32, kPlainColumns = 32, kPlainDepth = 16;

/// The grouped GEMM without tensor cores, in float32. Its instructions bound it, because a number
/// from shared memory serves only two multiplications. The grid is (the most tiles that there can
/// be, columns / kPlainColumns). A thread block computes 32 rows by 32 columns of out, of which a
/// thread has two by two; with SwiGLU it multiplies the gates and the ups of these columns.
template <class T, bool kSwiglu>
__global__ void __launch_bounds__(256) grouped_plain_kernel(GroupedGemm gemm) {
  begin_kernel();
  if (static_cast<int>(blockIdx.x) >= *gemm.groups.num_tiles) return;
  const TokenTile tile = gemm.groups.tiles[blockIdx.x];
  const GemmArgs& args = gemm.args;
  constexpr int kParts = kSwiglu ? 2 : 1;
  __shared__ float x[kPlainTokens][kPlainDepth + 1];
  __shared__ float w[kParts][kPlainColumns][kPlainDepth + 1];
  const int first_column = blockIdx.y * kPlainColumns, thread = threadIdx.x;
  const T* const from_x = static_cast<const T*>(args.x);
  const T* const from_w =
      static_cast<const T*>(args.w) + int64_t{tile.group} * kParts * args.n * args.k;
  float sums[kParts][2][2] = {};
  const int row = thread / 16, column = thread % 16;  // the other row and column are 16 further on
  for (int k = 0; k < args.k; k += kPlainDepth) {
    for (int i = thread; i < kPlainTokens * kPlainDepth; i += blockDim.x) {
      const int token = tile.first + i / kPlainDepth, at = k + i % kPlainDepth;
      const bool there = token < tile.last && at < args.k;
      x[i / kPlainDepth][i % kPlainDepth] =
          there ? to_float(from_x[int64_t{token} * args.k + at]) : 0;
    }
    for (int i = thread; i < kParts * kPlainColumns * kPlainDepth; i += blockDim.x) {
      const int part = i / (kPlainColumns * kPlainDepth), c = i / kPlainDepth % kPlainColumns;
      const int n = first_column + c, at = k + i % kPlainDepth;
      const bool there = n < args.n && at < args.k;
      w[part][c][i % kPlainDepth] =
          there ? to_float(from_w[(int64_t{part} * args.n + n) * args.k + at]) : 0;
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kPlainDepth; ++i)
#pragma unroll
      for (int part = 0; part < kParts; ++part)
#pragma unroll
        for (int r = 0; r < 2; ++r)
#pragma unroll
          for (int c = 0; c < 2; ++c)
            sums[part][r][c] += x[row + r * 16][i] * w[part][column + c * 16][i];
    __syncthreads();
  }
#pragma unroll
  for (int r = 0; r < 2; ++r)
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      const int token = tile.first + row + r * 16, n = first_column + column + c * 16;
      if (token >= tile.last || n >= args.n) continue;
      T y;
      if constexpr (kSwiglu) y = swiglu_of_sums<T>(sums[0][r][c], sums[1][r][c]);
      else y = from_float<T>(sums[0][r][c]);
      static_cast<T*>(args.out)[int64_t{token} * args.n + n] = y;
    }
}

}  // namespace

// -- launchers

int grouped_tile_tokens(int num_tokens, int num_groups, bool is_native) {
  if (!is_native) return kPlainTokens;
  const int per_group = num_tokens / num_groups;
  if (per_group <= 64) return 64;
  return per_group <= 256 ? 128 : 256;
}

void grouped_gemm(Launch where, const GroupedGemm& gemm, int tile_tokens, DType dtype,
                  bool is_native) {
  const GemmArgs& args = gemm.args;
  const bool swiglu = args.epilogue == Epilogue::kSwiglu;
  check_args(args.norm == nullptr && args.bias == nullptr && args.epilogue != Epilogue::kAdd,
             "grouped_gemm: an epilogue that it does not support");
  if (is_native) {
    check_args(dtype == DType::kBF16 && args.n % 8 == 0 && args.k % 8 == 0,
               "grouped_gemm: needs bfloat16, and n and k that are multiples of 8");
    const GroupTile* best = nullptr;
    double least = 0;
    for (const GroupTile& tile : kGroupTiles) {
      if (tile.config.tokens != tile_tokens || tile.config.swiglu != swiglu) continue;
      const double cost = grouped_cost(gemm, tile.config, where.num_sms);
      if (best == nullptr || cost < least) best = &tile, least = cost;
    }
    check_args(best != nullptr, "grouped_gemm: no tile has this number of tokens");
    return best->run(where, gemm);
  }
  check_args(tile_tokens == kPlainTokens, "grouped_gemm: another number of tokens in a tile");
  // The second size of a grid is at most 65,535.
  const dim3 grid(
      blocks_for(std::min(args.num_tokens, args.num_tokens / kPlainTokens + gemm.num_groups)),
      blocks_for(args.n, kPlainColumns));
  with_float_type(dtype, [&](auto type) {
    using T = decltype(type);
    if (swiglu) launch(where, grouped_plain_kernel<T, true>, grid, 256, 0, gemm);
    else launch(where, grouped_plain_kernel<T, false>, grid, 256, 0, gemm);
  });
}

}  // namespace nanovllm::cuda
