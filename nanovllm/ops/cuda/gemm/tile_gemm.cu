#include "nanovllm/ops/cuda/gemm/tile_loop.cuh"

#include <algorithm>
#include <array>
#include <bit>
#include <utility>

// GEMMs of a batch or a prompt on Hopper. The tokens are wgmma's M, the rows of w its N. With
// SwiGLU a tile has the gates and the ups of the same features, so that only their SwiGLU is
// written. If there are fewer tiles than multiprocessors, several thread blocks compute one tile,
// each for a part of k (split-K), and then each finishes a share of the tile's columns from the
// sums of all, added in the order of k. Read tile.cuh for the layout and the epilogues, and
// tile_loop.cuh for the main loop.
#pragma nv_diag_suppress 177  // unused functions when compiling for other targets than Hopper
namespace nanovllm::cuda {
namespace {

// -- kernel

/// The epilogue of run_tiles().
template <class Tile>
struct StoreTile {
  const TileParams& p;
  __device__ __forceinline__ void operator()(const Corner& at, const Item& item,
                                             const TileSums<Tile>& sums) const {
    if constexpr (Tile::kSwiglu) store_swiglu<Tile>(p, at, sums);
    else if (p.split_bits > 0) TileStore<Tile>{p, at}.store_part(sums, item.part);
    else TileStore<Tile>{p, at}.store_whole(sums);
  }
  __device__ void finish() const {}
};

template <class Tile>
__global__ void __launch_bounds__(Tile::kThreads, 1)
    tile_kernel(const __grid_constant__ TileParams p) {
  run_tiles<Tile>(p, [&] { return StoreTile<Tile>{p}; });
}

// -- launcher

/// How many thread blocks of this tile run on the GPU at the same time.
template <TileConfig kConfig>
int fit() {
  using T = Tile<kConfig.tokens, kConfig.rows, kConfig.swiglu>;
  static const int blocks = max_tile_blocks_of<T>(tile_kernel<T>);
  return blocks;
}
template <TileConfig kConfig>
void run(Launch where, const GemmArgs& args, const TileConfig& config, const TileScratch& scratch,
         const DeferredNorm& norm) {
  using T = Tile<kConfig.tokens, kConfig.rows, kConfig.swiglu>;
  const int num_blocks = config.blocks(args.num_tokens, args.n);
  const int blocks = std::min(std::min(fit<kConfig>(), where.num_sms) / 2 * 2, num_blocks);
  const TileParams params = {
      .w = tensor_map(args.w, T::kSwiglu ? 2 * args.n : args.n, args.k, T::kBoxRows),
      .x = tensor_map(args.x, args.num_tokens, args.k, T::kHalfTokens),
      .args = args,
      .group =
          static_cast<int>(std::max<int64_t>(kGroupBytes / (int64_t{2} * args.k * T::kTokens), 1)),
      .split_bits = std::countr_zero(static_cast<unsigned>(config.split)),
      .scratch = scratch,
      .groups = {},
      .norm = norm};
  launch(ClusterLaunch{where, 2}, tile_kernel<T>, dim3(static_cast<unsigned>(blocks)), T::kThreads,
         static_cast<size_t>(T::kSharedBytes), params);
}

template <size_t... kIndices>
constexpr auto all_runs(std::index_sequence<kIndices...>) {
  return std::array{run<kTiles[kIndices]>...};
}
constexpr auto kRuns = all_runs(std::make_index_sequence<kNumTiles>());

template <size_t... kIndices>
int least_fit(std::index_sequence<kIndices...>) {
  return std::min({fit<kTiles[kIndices]>()...});
}

}  // namespace

int max_tile_blocks(Launch where) {
  return std::min(where.num_sms, least_fit(std::make_index_sequence<kNumTiles>())) / 2 * 2;
}

void tile_gemm(Launch where, const GemmArgs& args, int config, const TileScratch& scratch,
               const DeferredNorm& norm) {
  check_args(supports_tile_gemm(args, DType::kBF16, max_tile_blocks(where), tile_config(config)),
             "tile_gemm: this configuration does not support the shape");
  kRuns[static_cast<size_t>(config / 3)](where, args, tile_config(config), scratch, norm);
}

}  // namespace nanovllm::cuda
