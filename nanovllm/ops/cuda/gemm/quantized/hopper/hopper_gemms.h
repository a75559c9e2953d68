#pragma once

#include <cstddef>

#include "nanovllm/ops/cuda/gemm/hopper/swap_ab_gemm.h"
#include "nanovllm/ops/cuda/gemm/hopper/tile_gemm.h"

// The parts of tile_gemm() and swap_ab_gemm() for quantized weights (GemmArgs::quantized).
namespace nanovllm::cuda {

/// `tile` is kTiles[index] with a split. Without GemmArgs::has_e4m3_x, dequantizes(tile) is true.
void quantized_tile_gemm(Launch where, const GemmArgs& args, size_t index, const TileConfig& tile,
                         const TileScratch& scratch, const DeferredNorm& norm);
/// quantized_tile_gemm() with GemmArgs::has_e4m3_x. multiplies_e4m3(tile) is true.
void e4m3_tile_gemm(Launch where, const GemmArgs& args, size_t index, const TileConfig& tile,
                    const TileScratch& scratch);
void quantized_swap_ab_gemm(Launch where, const GemmArgs& args, const SwapAbConfig& config,
                            const DeferredNorm& norm);
/// quantized_swap_ab_gemm() with GemmArgs::has_e4m3_x.
void e4m3_swap_ab_gemm(Launch where, const GemmArgs& args, const SwapAbConfig& config,
                       const DeferredNorm& norm);
int e4m3_stage_bytes(int rows, int tokens);
/// Bytes of a stage of quantized_swap_ab_gemm() with this many rows of w, and tokens.
int quantized_stage_bytes(const GemmArgs& args, int rows, int tokens);

/// Both GEMMs for one format of w. Each format is compiled in a file of its own.
template <class Format>
struct HopperGemms {
  static void tile(Launch where, const GemmArgs& args, size_t index, const TileConfig& tile,
                   const TileScratch& scratch, const DeferredNorm& norm);
  static void swap_ab(Launch where, const GemmArgs& args, const SwapAbConfig& config,
                      const DeferredNorm& norm);
};

}  // namespace nanovllm::cuda
