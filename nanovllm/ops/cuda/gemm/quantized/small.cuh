#pragma once

#include "nanovllm/ops/cuda/gemm/small_gemm.cuh"

// Which kernel of small_gemm.cuh computes which GEMM with a quantized weight. Each format is
// compiled in a file of its own.
namespace nanovllm::cuda {

template <class Format, int kTokenTiles>
void run_quantized_shape(Launch where, const GemmArgs& args, const QuantizedWeight& w) {
  // A chunk has twice the columns of a plain weight's, so x needs twice the registers.
  constexpr int kXStages = kTokenTiles == 1 ? 2 : 1;
  constexpr bool kIsInt4 = Format::kPieces == 1;
  constexpr int kNormTiles = kIsInt4 ? 3 : 2;
  if (args.epilogue == Epilogue::kSwiglu)
    run_small_gemm<Format, SmallTile::kSwiglu, true, kTokenTiles, kNormTiles, 2, kXStages>(where,
                                                                                           args, w);
  else if (args.norm != nullptr)
    run_small_gemm<Format, SmallTile::kWhole, true, kTokenTiles, 2, 2, kXStages>(where, args, w);
  else
    run_small_gemm<Format, SmallTile::kWhole, false, kTokenTiles, 1, 6, kXStages>(where, args, w);
}

template <class Format>
void run_quantized_small(Launch where, const GemmArgs& args, const QuantizedWeight& w) {
  if (args.num_tokens <= 8) run_quantized_shape<Format, 1>(where, args, w);
  else run_quantized_shape<Format, 2>(where, args, w);
}

}  // namespace nanovllm::cuda
