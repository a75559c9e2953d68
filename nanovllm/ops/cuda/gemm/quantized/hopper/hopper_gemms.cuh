#pragma once

#include "nanovllm/ops/cuda/gemm/hopper/swap_ab_kernel.cuh"
#include "nanovllm/ops/cuda/gemm/hopper/tile_kernel.cuh"
#include "nanovllm/ops/cuda/gemm/quantized/hopper/hopper_gemms.h"

namespace nanovllm::cuda {

template <class Format>
void HopperGemms<Format>::tile(Launch where, const GemmArgs& args, size_t index,
                               const TileConfig& tile, const TileScratch& scratch,
                               const DeferredNorm& norm) {
  static constexpr auto kRuns = all_tiles<Format>();
  check_args(kRuns[index] != nullptr, "tile_gemm: a tile that quantized weights do not have");
  kRuns[index](where, args, tile, scratch, norm);
}

template <class Format>
void HopperGemms<Format>::swap_ab(Launch where, const GemmArgs& args, const SwapAbConfig& config,
                                  const DeferredNorm& norm) {
  run_swap_ab<swap_ab::RawOperands<Format>>(where, args, config, norm);
}

}  // namespace nanovllm::cuda
