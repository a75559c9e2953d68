#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <iterator>

#include "nanovllm/ops/cuda/gemm/gemm_args.h"

namespace nanovllm::cuda {

/// How a product is cut: into tiles of tokens by rows of w, half of those gates with SwiGLU, and k
/// into parts, for each of which a tile has a block.
struct TileConfig {
  int tokens, rows;
  bool swiglu;
  int split = 1;

  constexpr int columns() const { return swiglu ? rows / 2 : rows; }
  /// Of a product with n columns of out. Tiles come in pairs of neighbours that share their tokens.
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
constexpr TileConfig tile_config(int index) {
  TileConfig cut = kTiles[index / 3];
  cut.split = 1 << index % 3;
  return cut;
}

/// Blocks of any cut that are on the GPU at once.
int max_tile_blocks(Launch where);
/// Whether tile_gemm() serves this cut of a product: bfloat16, n and k multiples of 8. Parts wait
/// for each other, so all have to be there at once.
inline bool can_tile(const GemmArgs& args, DType dtype, int max_blocks, const TileConfig& cut) {
  const bool swiglu = args.epilogue == Epilogue::kSwiglu;
  if (args.float_out && args.epilogue != Epilogue::kStore) return false;
  return dtype == DType::kBF16 && args.n % 8 == 0 && args.k % 8 == 0 && cut.swiglu == swiglu &&
         (cut.split == 1 || (!swiglu && args.k > 64 * (cut.split - 1) &&
                             cut.blocks(args.num_tokens, args.n) <= max_blocks));
}

/// The right to run grids whose blocks wait for each other on a GPU. Kernels of two engines of one
/// process run side by side, and two such grids that each hold some of the multiprocessors would
/// wait for ever. So only one engine at a time has it; the others take cuts without parts. Other
/// processes do not matter: the GPU serves processes in turns.
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

/// Memory for what the parts of a tile hand each other, and counters that are zero at first.
struct TileScratch {
  void* parts = nullptr;
  uint32_t* counters = nullptr;
};
inline constexpr size_t kTilePartBytes = size_t{20} << 20, kTileCounters = 1024;

/// A product of any number of tokens on Hopper; x has its norm already. Those with the same scratch
/// run one by one.
void tile_gemm(Launch where, const GemmArgs& args, int cut, const TileScratch& scratch);

}  // namespace nanovllm::cuda
