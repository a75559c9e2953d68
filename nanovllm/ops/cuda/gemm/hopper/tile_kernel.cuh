#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <utility>

#include "nanovllm/ops/cuda/gemm/hopper/tile_loop.cuh"
#include "nanovllm/ops/cuda/gemm/quantized/quantized_gemm.h"

// The kernel of tile_gemm.cu and, with another order of the tiles, of grouped_gemm.cu. These say
// what it computes. Each format of quantized weights is compiled in a file of its own
// (quantized/hopper/).
#pragma nv_diag_suppress 177  // unused functions when compiling for other targets than Hopper
namespace nanovllm::cuda {

// -- kernel

/// The epilogue of run_tiles().
template <class Tile, class Order>
struct StoreTile {
  const TileParams& p;
  __device__ __forceinline__ void operator()(const Corner& at, const Item& item,
                                             const TileSums<Tile>& sums) const {
    if constexpr (Tile::kSwiglu) store_swiglu<Tile>(p, at, sums);
    else if (Order::kSplits && p.split_bits > 0) TileStore<Tile>{p, at}.store_part(sums, item.part);
    else TileStore<Tile>{p, at}.store_whole(sums);
  }
  __device__ void finish() const {}
};

/// Clusters of two thread blocks take pairs of neighbouring tiles of out, one pair after the other.
/// In a thread block two or three warpgroups multiply, and one more copies x and w (tile_loop.cuh).
template <class Tile, class Order>
__global__ void __launch_bounds__(Tile::kThreads, 1)
    tile_kernel(const __grid_constant__ typename Tile::Params p) {
  run_tiles<Tile, Order>(p, [&] { return StoreTile<Tile, Order>{p}; });
}

// -- launcher

template <class Format, TileConfig kConfig>
using TileOf = Tile<kConfig.tokens, kConfig.rows, kConfig.swiglu, Format>;

/// How many thread blocks of this tile run on the GPU at the same time.
template <class T, class Order = Order<T>>
int fit() {
  static const int blocks = max_tile_blocks_of<T>(tile_kernel<T, Order>);
  return blocks;
}
template <class T, class Order = Order<T>>
void launch_tiles(Launch where, int blocks, const typename T::Params& params) {
  launch(ClusterLaunch{where, 2}, tile_kernel<T, Order>, blocks_for(blocks), T::kThreads,
         static_cast<size_t>(T::kSharedBytes), params);
}
/// Sets the operands of E4M3 by E4M3: x and w with their scales.
template <class T>
void set_operands(E4M3TileParams& p) {
  const QuantizedActivations& x = *p.args.quantized_x;
  const QuantizedWeight& w = *p.args.quantized;
  p.x = byte_tensor_map(x.values, p.args.num_tokens, p.args.k, x.row_bytes, T::kHalfTokens);
  p.w = byte_tensor_map(w.values, w.n, p.args.k, w.row_bytes(), T::kBoxRows);
  p.x_scales = tensor_map({.data = x.scales,
                           .type = CU_TENSOR_MAP_DATA_TYPE_FLOAT32,
                           .rows = steps_of<T>(p.args.k),
                           .columns = x.scale_stride,
                           .row_bytes = int64_t{4} * x.scale_stride,
                           .box_rows = 1,
                           .box_columns = T::kHalfTokens,
                           .swizzle = CU_TENSOR_MAP_SWIZZLE_NONE});
  p.w_scales = reinterpret_cast<const float*>(w.scales);
  p.w_scale_stride = w.row_stride;
  p.num_blocks = (w.n + kQuantizedChunk - 1) / kQuantizedChunk;
}
template <class T>
void run_tile(Launch where, const GemmArgs& args, const TileConfig& config,
              const TileScratch& scratch, const DeferredNorm& norm) {
  const int num_blocks = config.blocks(args.num_tokens, args.n);
  const int blocks = std::min(std::min(fit<T>(), where.num_sms) / 2 * 2, num_blocks);
  check_args(config.split == 1 || blocks == num_blocks,
             "tile_gemm: thread blocks that wait for each other do not all fit on the GPU");
  typename T::Params params;
  static_cast<TileParams&>(params) = {
      .w = {},
      .x = T::kE4M3 ? CUtensorMap() : tensor_map(args.x, args.num_tokens, args.k, T::kHalfTokens),
      .args = args,
      .group = static_cast<int>(
          std::max<int64_t>(kGroupBytes / (int64_t{T::kE4M3 ? 1 : 2} * args.k * T::kTokens), 1)),
      .split_bits = std::countr_zero(static_cast<unsigned>(config.split)),
      .scratch = scratch,
      .groups = {},
      .norm = norm};
  if constexpr (T::kE4M3) set_operands<T>(params);
  else if constexpr (T::kQuantized)
    params.raw = RawStage<typename T::Format>::params(*args.quantized, T::kBoxRows);
  else params.w = tensor_map(args.w, T::kSwiglu ? 2 * args.n : args.n, args.k, T::kBoxRows);
  launch_tiles<T>(where, blocks, params);
}

using RunTile = void(Launch, const GemmArgs&, const TileConfig&, const TileScratch&,
                     const DeferredNorm&);
/// Null if the tile is not compiled for the format.
template <class Format, TileConfig kConfig>
constexpr RunTile* tile_launcher() {
  constexpr bool kThere = std::is_same_v<Format, E4M3ByE4M3>
                              ? multiplies_e4m3(kConfig)
                              : !Format::kScaled || dequantizes(kConfig);
  if constexpr (kThere) return run_tile<TileOf<Format, kConfig>>;
  else return nullptr;
}
/// The launchers of all tiles.
template <class Format>
constexpr std::array<RunTile*, kNumTiles> all_tiles() {
  return []<size_t... kIndices>(std::index_sequence<kIndices...>) {
    return std::array<RunTile*, kNumTiles>{tile_launcher<Format, kTiles[kIndices]>()...};
  }
  (std::make_index_sequence<kNumTiles>());
}

}  // namespace nanovllm::cuda
