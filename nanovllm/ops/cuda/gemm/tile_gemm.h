#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <iterator>

#include "nanovllm/ops/cuda/gemm/gemm_args.h"

namespace nanovllm::cuda {

/// A tile configuration: a thread block computes a tile of `tokens` by `rows` of w, half of which
/// are gates with SwiGLU. With split-K, `split` thread blocks share out the k of one tile.
struct TileConfig {
  int tokens, rows;
  bool swiglu;
  int split = 1;

  constexpr int columns() const { return swiglu ? rows / 2 : rows; }
  /// Thread blocks of a GEMM with n columns of out. Tiles come in pairs, a cluster of two thread
  /// blocks with the same tokens.
  constexpr int blocks(int num_tokens, int n) const {
    const int pairs = (n + 2 * columns() - 1) / (2 * columns());
    return (num_tokens + tokens - 1) / tokens * pairs * 2 * split;
  }
};
inline constexpr TileConfig kTiles[] = {
    {64, 64, false},   {64, 96, false},   {64, 128, false}, {128, 64, false},  {128, 96, false},
    {128, 128, false}, {192, 64, false},  {192, 96, false}, {192, 128, false}, {256, 64, false},
    {256, 96, false},  {256, 128, false}, {64, 96, true},   {64, 192, true},   {128, 96, true},
    {128, 192, true},  {192, 96, true},   {192, 192, true}, {256, 192, true}};
inline constexpr int kNumTiles = std::size(kTiles), kNumTileConfigs = 3 * kNumTiles;
/// Number 0 to kNumTileConfigs - 1: every tile, each with a split of 1, 2 and 4.
constexpr TileConfig tile_config(int index) {
  TileConfig config = kTiles[index / 3];
  config.split = 1 << index % 3;
  return config;
}

/// Thread blocks of any tile configuration that the GPU holds at once.
int max_tile_blocks(Launch where);
/// Whether tile_gemm() computes a GEMM in this configuration: bfloat16, n and k multiples of 8.
/// Thread blocks of a split wait for each other, so the GPU must hold all of them at once.
inline bool can_tile(const GemmArgs& args, DType dtype, int max_blocks, const TileConfig& config) {
  const bool swiglu = args.epilogue == Epilogue::kSwiglu;
  if (args.float_out && args.epilogue != Epilogue::kStore) return false;
  return dtype == DType::kBF16 && args.n % 8 == 0 && args.k % 8 == 0 && config.swiglu == swiglu &&
         (config.split == 1 || (!swiglu && args.k > 64 * (config.split - 1) &&
                                config.blocks(args.num_tokens, args.n) <= max_blocks));
}

/// The right to run grids whose thread blocks wait for each other on a GPU. Kernels of two engines
/// of one process run side by side, and two such grids that each hold some of the multiprocessors
/// would wait for ever. So only one engine at a time has the right; the others use no split-K.
/// Other processes do not matter, since a GPU runs one process at a time.
class WaitingGrids {
 public:
  explicit WaitingGrids(int device)
      : taken_(takers()[static_cast<size_t>(device)]), allowed_(!taken_.exchange(true)) {}
  ~WaitingGrids() {
    if (allowed_) taken_ = false;
  }
  WaitingGrids(const WaitingGrids&) = delete;
  bool allowed() const { return allowed_; }

 private:
  static std::array<std::atomic<bool>, 64>& takers() {
    static std::array<std::atomic<bool>, 64> all;
    return all;
  }
  std::atomic<bool>& taken_;
  bool allowed_;
};

/// Memory through which the thread blocks of a split pass their sums on, and their counters, zero
/// before the first launch. GEMMs that share it must run one after the other.
struct TileScratch {
  void* parts = nullptr;
  uint32_t* counters = nullptr;
};
inline constexpr size_t kTilePartBytes = size_t{20} << 20, kTileCounters = 1024;

/// A GEMM of any number of tokens on Hopper, in tile_config(config). x is normed already.
void tile_gemm(Launch where, const GemmArgs& args, int config, const TileScratch& scratch);

}  // namespace nanovllm::cuda
