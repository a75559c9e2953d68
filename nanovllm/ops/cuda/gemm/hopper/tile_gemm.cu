#include "nanovllm/ops/cuda/gemm/hopper/tile_kernel.cuh"
#include "nanovllm/ops/cuda/gemm/quantized/hopper/hopper_gemms.h"

//   out [T, n] = x w^T + bias, out += x w^T, or SwiGLU (Epilogue),
// for the tokens T of a batch or a prompt on Hopper. The tokens are wgmma's M, the rows of w its N.
// A thread block computes one tile of out after the other. The tensor cores or the bandwidth of the
// L2 cache bound it with many tokens, reading the weights with few. With SwiGLU a tile has the
// gates and the ups of the same features, so that only their SwiGLU is written. If there are fewer
// tiles than multiprocessors, several thread blocks compute one tile, each for a part of k
// (split-K), and then each finishes a share of the tile's columns from the sums of all, added in
// the order of k. Read tile.cuh for the layout and the epilogues, tile_loop.cuh for the main loop,
// and tile_kernel.cuh for the kernel.
namespace nanovllm::cuda {
namespace {

constexpr auto kRuns = all_tiles<PlainFormat<Bf16>>();

template <size_t... kIndices>
int least_fit(std::index_sequence<kIndices...>) {
  return std::min({fit<TileOf<PlainFormat<Bf16>, kTiles[kIndices]>>()...});
}

}  // namespace

int max_tile_blocks(Launch where) {
  return std::min(where.num_sms, least_fit(std::make_index_sequence<kNumTiles>())) / 2 * 2;
}

void tile_gemm(Launch where, const GemmArgs& args, int config, const TileScratch& scratch,
               const DeferredNorm& norm) {
  const TileConfig tile = tile_config(config);
  check_args(supports_tile_gemm(args, DType::kBF16, max_tile_blocks(where), tile),
             "tile_gemm: this configuration does not support the shape");
  const auto index = static_cast<size_t>(config / 3);
  if (args.quantized != nullptr)
    return quantized_tile_gemm(where, args, index, tile, scratch, norm);
  kRuns[index](where, args, tile, scratch, norm);
}

}  // namespace nanovllm::cuda
