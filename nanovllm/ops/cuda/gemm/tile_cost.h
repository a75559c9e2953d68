#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

#include "nanovllm/ops/cuda/gemm/hopper/tile_gemm.h"
#include "nanovllm/ops/cuda/gemm/quantized/quantized_weight.h"

namespace nanovllm::cuda {

inline constexpr double kMemoryPerUs = 4.0e6;  // bytes that all thread blocks load or store

inline double value_bytes(const QuantizedWeight* w) {
  return w == nullptr ? 2 : w->format == QuantizedFormat::kInt4 ? 0.5 : 1;
}
/// About how many microseconds it takes to make 16-bit floats of a whole weight.
inline double dequantize_cost(const QuantizedWeight& w) {
  return double{1.0 * w.n} * w.k * (value_bytes(&w) + 2) / kMemoryPerUs;
}

/// About how many microseconds tile_gemm() takes in this configuration. Only the order of the
/// configurations matters: autotuning measures the first ones, and without a measurement the first
/// one is used. The constants were fitted to chains of GEMMs on one H200 (15 models from 0.36B to
/// 32B, 64 to 8,192 tokens): the first configuration takes 2.4% longer than the best of all, the
/// best of the first two 0.9%, the best of the first three 0.4%.
inline double tile_cost(const GemmArgs& args, const TileConfig& config, int num_sms) {
  // Times are in microseconds. Those that depend on the tile are for 256 tokens x 128 rows.
  constexpr double kChunkTime = 0.74;      // multiplying 64 columns of k
  constexpr double kE4M3ChunkTime = 0.9;   // multiplying and scaling 128 columns of k in E4M3
  constexpr double kBytesPerUs = 85e3;     // bytes that a thread block loads
  constexpr double kNewBytesPerUs = 78e3;  // bytes of w that no other thread block has loaded
  constexpr double kXWeight = 0.49;        // cost of a byte of x, relative to such a byte of w
  constexpr double kLoadShare = 0.1;       // share of a load that adds to a multiplication
  constexpr double kEpilogueTime = 1.9;    // storing the tile
  constexpr double kExchangeTime = 1.4;    // exchanging sums with one other thread block (split-K)
  constexpr double kSplitTime = 2.3;       // waiting until all thread blocks of a tile are there
  // Converting 64 columns of 128 quantized rows, estimated from the instructions of a warp.
  constexpr double kConvertTime = 0.2;
  constexpr double kOverlap = 0.16;  // share of the shorter of two times that adds to the longer
  const double tile = config.tokens * config.rows / double{256 * 128};
  const int token_tiles = (args.num_tokens + config.tokens - 1) / config.tokens;
  const int blocks = config.blocks(args.num_tokens, args.n);
  const int waves = (blocks + num_sms - 1) / num_sms;
  // E4M3 operands have twice the columns in the same bytes.
  const bool is_e4m3 = args.has_e4m3_x;
  const int columns = is_e4m3 ? 128 : 64;  // columns of a chunk
  const double chunk_time = is_e4m3 ? kE4M3ChunkTime : kChunkTime;
  const int chunks = (args.k + columns * config.split - 1) / (columns * config.split);
  const double per_value = value_bytes(args.quantized);
  const double w_bytes = columns * per_value * config.rows, x_bytes = 128 * config.tokens;
  const double load = (w_bytes + x_bytes) / kBytesPerUs;
  const double new_load = (w_bytes / token_tiles + kXWeight * x_bytes) / kNewBytesPerUs;
  const bool converts = args.quantized != nullptr && !is_e4m3;
  const int converted = converts ? (config.rows + 127) / 128 : 0;
  const double convert = kConvertTime * converted;
  const double chunk = std::max({chunk_time * tile, load, new_load, convert}) + kLoadShare * load;
  const double compute = waves * (chunks * chunk + kEpilogueTime * tile * (args.float_out ? 2 : 1));
  const double w_rows = (config.swiglu ? 2.0 : 1.0) * args.n;
  const double out_bytes = (args.float_out ? 4 : 2) * (args.epilogue == Epilogue::kAdd ? 2 : 1);
  const double bytes = per_value * w_rows * args.k +
                       (is_e4m3 ? 1.0 : 2.0) * args.num_tokens * args.k +
                       out_bytes * args.num_tokens * args.n;
  const double exchanges = std::countr_zero(static_cast<unsigned>(config.split));
  const double exchange = config.split > 1 ? kSplitTime + kExchangeTime * exchanges * tile : 0;
  const double memory = bytes / kMemoryPerUs;
  return std::max(compute, memory) + kOverlap * std::min(compute, memory) + exchange;
}

}  // namespace nanovllm::cuda
