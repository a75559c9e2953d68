#pragma once

#include <cstddef>

#include "nanovllm/ops/cuda/gemm/swap_ab_gemm.h"
#include "nanovllm/ops/cuda/gemm/tile_gemm.h"

// tile_gemm() and swap_ab_gemm() for quantized weights (GemmArgs::quantized), which these two call.
namespace nanovllm::cuda {

/// `tile` is in kTiles at `index`; dequantizes(tile).
void quantized_tile_gemm(Launch where, const GemmArgs& args, size_t index, const TileConfig& tile,
                         const TileScratch& scratch, const DeferredNorm& norm);
void quantized_swap_ab_gemm(Launch where, const GemmArgs& args, const SwapAbConfig& config,
                            const DeferredNorm& norm, const RopeParams* rope);

}  // namespace nanovllm::cuda
