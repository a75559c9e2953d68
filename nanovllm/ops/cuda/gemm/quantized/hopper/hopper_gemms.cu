#include "nanovllm/ops/cuda/gemm/quantized/hopper/hopper_gemms.h"

#include "nanovllm/ops/cuda/gemm/quantized/hopper/raw_operands.cuh"

namespace nanovllm::cuda {

namespace {

/// Calls body(Format()) with kFine for all integers, since the kernels for Hopper find out by
/// themselves whether each group has its own scale.
template <class Body>
auto with_format(const QuantizedWeight& w, Body body) {
  switch (w.format) {
    case QuantizedFormat::kInt8:
      return body(Int8Format<Bf16, true>());
    case QuantizedFormat::kInt4:
      return body(Int4Format<Bf16, true>());
    default:
      return body(E4M3Format<Bf16>());
  }
}

}  // namespace

void quantized_tile_gemm(Launch where, const GemmArgs& args, size_t index, const TileConfig& tile,
                         const TileScratch& scratch, const DeferredNorm& norm) {
  if (args.has_e4m3_x) return e4m3_tile_gemm(where, args, index, tile, scratch);
  with_format(*args.quantized, [&](auto format) {
    HopperGemms<decltype(format)>::tile(where, args, index, tile, scratch, norm);
  });
}

void quantized_swap_ab_gemm(Launch where, const GemmArgs& args, const SwapAbConfig& config,
                            const DeferredNorm& norm) {
  if (args.has_e4m3_x) return e4m3_swap_ab_gemm(where, args, config, norm);
  with_format(*args.quantized, [&](auto format) {
    HopperGemms<decltype(format)>::swap_ab(where, args, config, norm);
  });
}

int quantized_stage_bytes(const GemmArgs& args, int rows, int tokens) {
  if (args.has_e4m3_x) return e4m3_stage_bytes(rows, tokens);
  return with_format(*args.quantized, [&](auto format) {
    using Operands = swap_ab::RawOperands<decltype(format)>;
    return Operands::bytes(rows) + Operands::x_bytes(tokens);
  });
}

}  // namespace nanovllm::cuda
