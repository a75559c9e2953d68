#pragma once

#include <numeric>

#include "nanovllm/ops/cuda/gemm/hopper/tile.cuh"

// The multiplication in a tile of tile_gemm.cu if both x and w are E4M3. The tensor cores multiply
// the bytes as they are and add the products of one chunk of k, which share their scales; then
// these sums are scaled and added in float32. (That is also more exact: the tensor cores' own sums
// of E4M3 have fewer bits than float32.)
//
// Scaling takes nearly as long as multiplying, so a warpgroup does both at the same time: the
// products of a chunk are computed in units, and while one unit is scaled, the next one is
// multiplied into other registers. Tiles that leave no registers for two units (kBuffers = 1) do
// one after the other.
namespace nanovllm::cuda {

template <class Tile>
class E4M3Multiplier {
 public:
  /// Offsets in bytes: of the warpgroup's rows of x and w in a stage, and of the scale of the
  /// thread's first token among the scales of the stage. `zero` is 0, which the compiler does not
  /// know, and it must not know either that all threads have the same value: it would move values
  /// that all threads share into uniform registers, and wait for them.
  struct Offsets {
    int x, w, scales, zero;
  };

  /// `first_row` is the first row of w that the warpgroup has; the item has `num` chunks of k from
  /// `chunk` on.
  __device__ __forceinline__ E4M3Multiplier(const E4M3TileParams& p, const Rings<Tile>& rings,
                                            const Offsets& offsets, int first_row, int chunk,
                                            int num)
      : rings_(rings),
        x_(tile_descriptor(rings.stage(0) + offsets.x, 1024, 0)),
        w_(tile_descriptor(rings.stage(0) + offsets.w, 1024, 0)),
        scales_(rings.scales(0) + offsets.scales),
        zero_(offsets.zero),
        num_(num) {
#pragma unroll
    for (int i = 0; i < kRuns; ++i) {
      const int row = first_row + i * p.args.n, block = row / kBlockRows;
      const auto scales_of = [&](int b) {  // rows beyond the last block are not used
        return p.w_scales + int64_t{min(b, p.num_blocks - 1)} * p.w_scale_stride + chunk;
      };
      from_[i][0] = scales_of(block);
      if constexpr (kGrains > 1) from_[i][1] = scales_of(block + 1);
      border_[i] = (kBlockRows - row % kBlockRows) / kGrain;
    }
    load(0, now_);
    load(32, after_);
  }

  /// sums = the products of all chunks, of which the first is at `at`. Calls release(stage) as soon
  /// as a stage has been read.
  template <class Release>
  __device__ __forceinline__ void run(TileSums<Tile>& sums, RingCursor<Tile::kStages>& at,
                                      const Release& release) {
#pragma unroll
    for (int block = 0; block < Tile::kBlocks; ++block)
#pragma unroll
      for (float& sum : sums[block]) sum = 0;
    float parts[kBuffers][kUnitRows / 2];
    barrier_wait(rings_.full(at.stage), at.parity);
    load_scales(at.stage, 0);
    if constexpr (kBuffers == 2) begin_unit(parts[0], at.stage, 0);
    int chunk = 0;
    const auto add = [&](auto first, auto is_last) {
      add_chunk<decltype(first)::value, decltype(is_last)::value>(sums, parts, at, chunk, release);
    };
    constexpr std::integral_constant<int, 0> kEven;
    constexpr std::integral_constant<int, kUnits % kBuffers> kOdd;
    constexpr std::false_type kMore;
    constexpr std::true_type kLast;
    // Two chunks in a round: with one, ptxas 13 serialises units that are halves.
#pragma unroll 1
    while (chunk + 2 < num_) {
      add(kEven, kMore);
      add(kOdd, kMore);
    }
    if (chunk + 1 < num_) {
      add(kEven, kMore);
      add(kOdd, kLast);
    } else {
      add(kEven, kLast);
    }
  }

 private:
  /// A warpgroup has runs of consecutive rows of w: with SwiGLU gates and ups. A run is in one
  /// block of rows with the same scales, or in two, whose border is a multiple of kGrain.
  static constexpr int kRuns = Tile::kSwiglu ? 2 : 1, kRunRows = Tile::kGroupRows / kRuns;
  static constexpr int kBlockRows = 128, kGrain = std::gcd(kRunRows, kBlockRows);
  static constexpr int kGrains = kRunRows / kGrain, kBlocksOfRun = kGrains > 1 ? 2 : 1;
  static_assert(kGrain % 8 == 0 && kRunRows <= 192);
  /// A unit has 64 tokens, and all rows or half of them: half only if both units do not fit beside
  /// the sums otherwise, and not if few rows would be left, because each unit reads all of x.
  static constexpr int kMostSums = Tile::kConsumerGroups == 3 ? 128 : 192;
  static constexpr int kAllSums = Tile::kBlocks * Tile::kGroupRows / 2;
  static constexpr bool kTwoFit = kAllSums + Tile::kGroupRows <= kMostSums;
  static constexpr bool kHalves = !kTwoFit && Tile::kGroupRows / 2 >= 80;
  static constexpr int kUnitRows = kHalves ? Tile::kGroupRows / 2 : Tile::kGroupRows;
  static constexpr int kUnits = Tile::kBlocks * (kHalves ? 2 : 1);  // units of a chunk
  static constexpr int kBuffers = kAllSums + kUnitRows <= kMostSums ? 2 : 1;

  using Scales = float[kRuns][kBlocksOfRun];
  /// Loads the scales of 32 chunks, one in each lane.
  __device__ __forceinline__ void load(int chunk, Scales& to) const {
    chunk += static_cast<int>(threadIdx.x) % 32;
    if (chunk >= num_) return;
#pragma unroll
    for (int i = 0; i < kRuns; ++i)
#pragma unroll
      for (int j = 0; j < kBlocksOfRun; ++j) to[i][j] = __ldg(from_[i][j] + chunk);
  }

  static __device__ constexpr int block_of(int unit) { return kHalves ? unit / 2 : unit; }
  static __device__ constexpr int first_sum(int unit) {
    return kHalves ? unit % 2 * (kUnitRows / 2) : 0;
  }

  __device__ __forceinline__ void begin_unit(float (&part)[kUnitRows / 2], int stage,
                                             int unit) const {
    const uint64_t x = descriptor_at(x_, stage * Tile::kStageBytes);
    const uint64_t w = descriptor_at(w_, stage * Tile::kStageBytes);
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < kChunkBytes / 32; ++k)
      Wgmma<__nv_fp8_e4m3, kUnitRows>::ss(
          part, descriptor_at(x, block_of(unit) * 64 * kChunkBytes + k * 32),
          descriptor_at(w, first_sum(unit) * 2 * kChunkBytes + k * 32), k > 0);
    wgmma_commit();
  }

  /// Adds the next chunk. With two buffers the chunk's first unit has begun, in buffer kFirst.
  template <int kFirst, bool kIsLast, class Release>
  __device__ __forceinline__ void add_chunk(TileSums<Tile>& sums,
                                            float (&parts)[kBuffers][kUnitRows / 2],
                                            RingCursor<Tile::kStages>& at, int& chunk,
                                            const Release& release) {
    const int stage = at.stage;
    at.advance();
    float of_w[kRuns][kGrains], of_x[Tile::kBlocks][2];
#pragma unroll
    for (int block = 0; block < Tile::kBlocks; ++block)
#pragma unroll
      for (int i = 0; i < 2; ++i) of_x[block][i] = of_x_[block][i];
#pragma unroll
    for (int i = 0; i < kRuns; ++i)
#pragma unroll
      for (int grain = 0; grain < kGrains; ++grain)
        of_w[i][grain] = grain < border_[i] ? of_w_[i][0] : of_w_[i][kBlocksOfRun - 1];
#pragma unroll
    for (int unit = 0; unit < kUnits; ++unit) {
      auto& part = parts[(kFirst + unit) % kBuffers];
      auto& next = parts[(kFirst + unit + 1) % kBuffers];
      if constexpr (kBuffers == 1) begin_unit(part, stage, unit);
      else if (unit + 1 < kUnits) begin_unit(next, stage, unit + 1);
      else if (!kIsLast) {
        barrier_wait(rings_.full(at.stage), at.parity);
        load_scales(at.stage, chunk + 1);
        begin_unit(next, at.stage, 0);
      }
      if (kBuffers == 1 || (unit + 1 == kUnits && kIsLast)) wgmma_wait<0>();
      else wgmma_wait<1>();
      pin(part);
      if (unit + 1 == kUnits) {
        release(stage);
        if constexpr (kBuffers == 1 && !kIsLast) {
          barrier_wait(rings_.full(at.stage), at.parity);
          load_scales(at.stage, chunk + 1);
        }
      }
      constexpr int kOfRun = kRunRows / 2, kOfGrain = kGrain / 2;
      const int block = block_of(unit), first = first_sum(unit);
#pragma unroll
      for (int i = 0; i < kUnitRows / 2; ++i) {
        const int at_sum = first + i;
        const float scale =
            of_w[at_sum / kOfRun][at_sum % kOfRun / kOfGrain] * of_x[block][i / 2 % 2];
        sums[block][at_sum] += part[i] * scale;
      }
    }
    ++chunk;
  }

  /// Loads the scales of a chunk. The latencies pass while the chunk before is computed.
  __device__ __forceinline__ void load_scales(int stage, int chunk) {
#pragma unroll
    for (int block = 0; block < Tile::kBlocks; ++block)
#pragma unroll
      for (int i = 0; i < 2; ++i)  // both tokens
        of_x_[block][i] = __uint_as_float(
            load_shared_word(scales_ + stage * Tile::kScaleBytes + (block * 64 + i * 8) * 4));
    if (chunk % 32 == 0 && chunk > 0) {
#pragma unroll
      for (int i = 0; i < kRuns; ++i)
#pragma unroll
        for (int j = 0; j < kBlocksOfRun; ++j) now_[i][j] = after_[i][j];
      load(chunk + 32, after_);
    }
#pragma unroll
    for (int i = 0; i < kRuns; ++i)
#pragma unroll
      for (int j = 0; j < kBlocksOfRun; ++j)
        of_w_[i][j] = __shfl_sync(kAllLanes, now_[i][j], chunk % 32 + zero_);
  }

  const Rings<Tile> rings_;
  const uint64_t x_, w_;   // tile descriptors in stage 0
  const uint32_t scales_;  // address of the scale of the thread's first token in stage 0
  const int zero_;
  const int num_;  // chunks of the item
  const float* from_[kRuns][kBlocksOfRun];
  int border_[kRuns];             // the first grain in the second block
  Scales now_ = {}, after_ = {};  // the scales of 32 chunks, and of the next 32
  // The scales of the next chunk.
  Scales of_w_;
  float of_x_[Tile::kBlocks][2];
};

}  // namespace nanovllm::cuda
