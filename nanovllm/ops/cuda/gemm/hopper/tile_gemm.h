#pragma once

#include <array>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <iterator>

#include "nanovllm/ops/cuda/gemm/gemm_args.h"
#include "nanovllm/ops/cuda/gemm/token_groups.h"

namespace nanovllm::cuda {

/// A tile configuration: a thread block computes a tile of `tokens` tokens by `rows` rows of w;
/// with SwiGLU half of the rows are gates. With split-K, `split` thread blocks compute one tile,
/// each for a part of k.
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
    {64, 64, false},   {64, 96, false},   {64, 128, false},  {64, 160, false},  {128, 64, false},
    {128, 96, false},  {128, 128, false}, {128, 160, false}, {192, 64, false},  {192, 96, false},
    {192, 128, false}, {256, 64, false},  {256, 96, false},  {256, 128, false}, {64, 96, true},
    {64, 128, true},   {64, 160, true},   {64, 192, true},   {64, 224, true},   {128, 96, true},
    {128, 128, true},  {128, 160, true},  {128, 192, true},  {128, 224, true},  {192, 96, true},
    {192, 128, true},  {192, 160, true},  {192, 192, true},  {256, 128, true},  {256, 160, true},
    {256, 192, true}};
inline constexpr int kNumTiles = std::size(kTiles), kNumTileConfigs = 3 * kNumTiles;
/// Whether a tile is compiled for quantized weights too, once for each format. Its two consumer
/// warpgroups have fewer registers for sums than they have with other weights. The tiles that are
/// left out would only save waves of thread blocks for some shapes.
constexpr bool dequantizes(const TileConfig& tile) {
  constexpr int kMostSums = 160;  // sums of a thread
  return std::has_single_bit(static_cast<unsigned>(tile.tokens)) && tile.rows % 64 == 0 &&
         tile.tokens * tile.rows <= kMostSums * 256;
}
/// Whether a tile is compiled for x and w in E4M3 too. A thread has, beside the sums, those of one
/// chunk of k and 64 tokens.
constexpr bool multiplies_e4m3(const TileConfig& tile) {
  const int groups = tile.tokens == 192 ? 3 : 2;  // warpgroups that multiply
  const int part_rows = tile.tokens == 64 ? tile.rows / 2 : tile.rows;
  const int most = groups == 3 ? 128 : 192;
  return tile.tokens * tile.rows / (128 * groups) + part_rows / 2 <= most;
}
/// Configuration `index` of kNumTileConfigs: each tile has one with a split of 1, of 2 and of 4.
constexpr TileConfig tile_config(int index) {
  TileConfig config = kTiles[index / 3];
  config.split = 1 << index % 3;
  return config;
}

/// How many thread blocks run on the GPU at the same time in every tile configuration.
int max_tile_blocks(Launch where);
/// Whether tile_gemm() computes a GEMM in this configuration: bfloat16, n and k multiples of 8.
/// With split-K thread blocks wait for each other, so all of them must run at the same time, and
/// each has a part of k.
inline bool supports_tile_gemm(const GemmArgs& args, DType dtype, int max_blocks,
                               const TileConfig& config) {
  const bool swiglu = args.epilogue == Epilogue::kSwiglu;
  if (args.float_out && args.epilogue != Epilogue::kStore) return false;
  if (args.has_e4m3_x ? !multiplies_e4m3(config)
                      : args.quantized != nullptr && !dequantizes(config))
    return false;
  const int least_columns = args.quantized != nullptr ? 128 : 64;  // columns of a part of k
  return dtype == DType::kBF16 && args.n % 8 == 0 && args.k % 8 == 0 && config.swiglu == swiglu &&
         (config.split == 1 || (!swiglu && args.k > least_columns * (config.split - 1) &&
                                config.blocks(args.num_tokens, args.n) <= max_blocks));
}

/// The right to run grids whose thread blocks wait for each other on a GPU. Kernels of two engines
/// of one process run concurrently, and two such grids, each on some of the multiprocessors, would
/// wait forever. So only one engine of a process has the right at a time; the others use no
/// split-K. Processes take turns on a GPU, unless they share it through MPS; then no engine has the
/// right.
class WaitingGrids {
 public:
  explicit WaitingGrids(int device)
      : taken_(takers()[static_cast<size_t>(device)]),
        allowed_(!is_shared_by_processes(device) && !taken_.exchange(true)) {}
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

/// Memory through which thread blocks exchange sums with split-K. GEMMs that share it must run one
/// after the other.
struct TileScratch {
  void* parts = nullptr;         ///< kTilePartBytes
  uint32_t* counters = nullptr;  ///< [kTileCounters], zero before the first launch
};
inline constexpr size_t kTilePartBytes = size_t{20} << 20, kTileCounters = 1024;

/// Computes a GEMM of any number of tokens on Hopper, in tile_config(config). x has been normed; or
/// it is norm.x, and the GEMM finishes the norm.
void tile_gemm(Launch where, const GemmArgs& args, int config, const TileScratch& scratch,
               const DeferredNorm& norm = {});

}  // namespace nanovllm::cuda
