#include "nanovllm/ops/cuda/gemm/hopper/tile_kernel.cuh"
#include "nanovllm/ops/cuda/gemm/quantized/hopper/hopper_gemms.h"

// tile_gemm() of weights and activations in E4M3 (e4m3_multiply.cuh).
namespace nanovllm::cuda {

void e4m3_tile_gemm(Launch where, const GemmArgs& args, size_t index, const TileConfig& tile,
                    const TileScratch& scratch) {
  static constexpr auto kRuns = all_tiles<E4M3ByE4M3>();
  check_args(kRuns[index] != nullptr && args.quantized->row_shift == 7 &&
                 args.quantized_x->has_chunks && args.quantized_x->scale_stride % 4 == 0,
             "tile_gemm: E4M3 by E4M3 needs another tile, or other scales");
  kRuns[index](where, args, tile, scratch, {});
}

}  // namespace nanovllm::cuda
