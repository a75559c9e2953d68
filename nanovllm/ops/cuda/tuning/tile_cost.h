#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

#include "nanovllm/ops/cuda/gemm/tile_gemm.h"

namespace nanovllm::cuda {

/// About how many microseconds tile_gemm() takes in this configuration. Only the order of the
/// configurations matters: autotuning measures the first ones, and without a measurement the first
/// one is used. The constants were fitted to 15,000 measurements on one H200 (13 models from 0.36B
/// to 32B, 8 to 16,384 tokens): the best of the first two configurations takes 1% longer than the
/// best of all.
inline double tile_cost(const GemmArgs& args, const TileConfig& config, int num_sms) {
  constexpr double kChunkTime = 0.73;     // to multiply 64 of k in a tile of 256 x 128
  constexpr double kLoadTime = 0.585;     // to load 64 of k of 384 rows
  constexpr double kEpilogueTime = 3.4;   // of a tile of 256 x 128
  constexpr double kExchangeTime = 2.0;   // of its sums with one other thread block (split-K)
  constexpr double kBytesPerUs = 2.7e6;   // from memory, if enough thread blocks read
  constexpr double kEnoughBlocks = 0.36;  // for each multiprocessor
  const double tokens = config.tokens, rows = config.rows, tile = tokens * rows / (256 * 128);
  const int blocks = config.blocks(args.num_tokens, args.n);
  const double waves = (blocks + num_sms - 1) / num_sms;
  const double chunks = (args.k + 64 * config.split - 1) / (64 * config.split);
  const double chunk = std::max(kChunkTime * tile, kLoadTime * (tokens + rows) / 384);
  const double compute = waves * (chunks * chunk + kEpilogueTime * tile * (args.float_out ? 2 : 1));
  const double w_rows = double{config.swiglu ? 2.0 : 1.0} * args.n;
  const double out_bytes = (args.float_out ? 4 : 2) * (args.epilogue == Epilogue::kAdd ? 2 : 1);
  const double bytes = 2 * w_rows * args.k + double{2} * args.num_tokens * args.k +
                       out_bytes * args.num_tokens * args.n;
  const double busy = std::min(blocks, num_sms) / (kEnoughBlocks * num_sms);
  const double exchange =
      config.split > 1
          ? kExchangeTime * std::countr_zero(static_cast<unsigned>(config.split)) * tile
          : 0;
  return std::max(compute, bytes / (kBytesPerUs * std::min(busy, 1.0))) + exchange;
}

}  // namespace nanovllm::cuda
