#pragma once

#include <algorithm>

#include "nanovllm/ops/cuda/attention/attention.h"
#include "nanovllm/ops/cuda/attention/decode/decode_heads.cuh"
#include "nanovllm/ops/cuda/device/hopper.cuh"

// How the thread blocks of attention_decode.cu prefetch keys and values: tile after tile of a
// thread block's range is copied into a ring of stages in shared memory.
namespace nanovllm::cuda::decode {
using namespace hopper;

inline constexpr int kWarps = 4, kThreads = kWarps * 32;  // that compute; a copying warp may follow
static_assert(kWarps * kDecodeKeys == kDecodeTile);
/// Without bulk copies the ring is small, because most GPUs without them have 99 KB of shared
/// memory for a thread block.
template <class C, int kHeadDim, bool kBulk>
inline constexpr int kRingStages = kBulk ? kDecodeStages<C, kHeadDim>
                                         : std::max(1, 16384 / kDecodeStageBytes<C, kHeadDim>);

/// A place in the list of tiles (DecodePlan).
struct Cursor {
  int seq, head, tile;
  int context, slot, token;
  int num_tiles;  // tiles of each head of the sequence
  DecodeSplits splits;

  __device__ Cursor(const DecodeStart& start, const DecodeSplits& splits_)
      : seq(start.seq),
        head(start.head),
        tile(start.tile),
        context(start.context),
        slot(start.slot),
        token(start.token),
        num_tiles(splits_.tiles_of(context)),
        splits(splits_) {}
  /// Moves to the next tile, which has to exist.
  __device__ void advance(const AttentionParams& p, const DecodePlan& plan) {
    if (++tile < num_tiles) return;
    tile = 0;
    if (++head < p.layout.num_kv_heads) return;
    head = 0;
    do ++seq;
    while (plan.first_tile[seq + 1] == plan.first_tile[seq]);
    context = p.context_lens[seq];
    slot = p.seq_slots[seq];
    token = p.cu_seqlens_q[seq];
    num_tiles = splits.tiles_of(context);
  }
};

/// Without bulk copies, each warp copies the 16 keys of each tile that it will compute into its own
/// ring.
template <class C, int kHeadDim>
struct WarpCopies {
  static constexpr int kStages = kRingStages<C, kHeadDim, false>;
  Cursor at;
  int remaining;  // tiles of the block's range from `at` on
  uint32_t ring;
  int num_issued = 0;
  int block = 0;  // block of the cache that holds the tile at `at`

  __device__ int first_key() const {
    return at.tile * kDecodeTile + static_cast<int>(threadIdx.x) / 32 * kDecodeKeys;
  }
  /// Finds the next tile that has keys for this warp, and loads the number of its block of the
  /// cache.
  __device__ void seek(const AttentionParams& p, const DecodePlan& plan) {
    while (remaining > 0 && first_key() >= at.context) step(p, plan);
    if (remaining > 0)
      block = p.block_tables[int64_t{at.slot} * p.max_blocks + first_key() / p.layout.block_size];
  }
  __device__ void step(const AttentionParams& p, const DecodePlan& plan) {
    if (--remaining > 0) at.advance(p, plan);
  }
  __device__ void issue(const AttentionParams& p, const DecodePlan& plan) {
    constexpr int kHalf = kDecodeStageBytes<C, kHeadDim> / 2;
    if (remaining > 0) {
      const uint32_t to = ring + num_issued % kStages * kDecodeStageBytes<C, kHeadDim>;
      const int64_t from = p.layout.entry(block, at.head) +
                           first_key() % p.layout.block_size * kKeyBytes<C, kHeadDim>;
      const char* k = static_cast<const char*>(p.k) + from;
      const char* v = static_cast<const char*>(p.v) + from;
#pragma unroll
      for (int i = 0; i < (kHalf + 511) / 512; ++i) {
        const int offset = i * 512 + static_cast<int>(threadIdx.x) % 32 * 16;
        if (kHalf % 512 != 0 && offset >= kHalf) break;
        async_copy16(to + offset, k + offset);
        async_copy16(to + kHalf + offset, v + offset);
      }
      ++num_issued;
      step(p, plan);
      seek(p, plan);
    }
    commit_async_copies();
  }
};

/// With bulk copies, the thread block has one ring. A stage holds K of all keys of a tile, then V.
template <class C, int kHeadDim>
struct TileRing {
  static constexpr int kStages = kRingStages<C, kHeadDim, true>;
  static constexpr int kBytes = kKeyBytes<C, kHeadDim>, kHalf = kDecodeTile * kBytes;
  uint32_t stages, barriers;
  __device__ uint32_t stage(int i) const { return stages + i * 2 * kHalf; }
  __device__ uint32_t full(int i) const { return barriers + i * 8; }
  __device__ uint32_t empty(int i) const { return barriers + (kStages + i) * 8; }
  __device__ void init() const {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    for (int i = 0; i < kStages; ++i) {
      barrier_init(full(i), 1);
      barrier_init(empty(i), kThreads);
    }
    fence_barrier_init();
#endif
  }
};

/// The producer warp copies `count` tiles from `at` on; the first of them is in `block` of the
/// cache. With `prefetch_keys` it waits for the previous kernel only before the first tile that
/// holds a sequence's newest key.
template <class C, int kHeadDim>
__device__ inline void copy_tiles(const AttentionParams& p, const DecodePlan& plan, Cursor at,
                                  int block, int count, const TileRing<C, kHeadDim>& ring,
                                  bool prefetch_keys) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  using Ring = TileRing<C, kHeadDim>;
  const int lane = threadIdx.x % 32;
  // Each lane copies the keys of a tile that are in one block of the cache.
  const int lane_keys = p.layout.block_size % kDecodeTile == 0 ? kDecodeTile : kDecodeKeys;
  RingCursor<Ring::kStages> to;
  if (lane > 0) block = -1;  // not known yet
  for (;; at.advance(p, plan), block = -1) {
    const int first = at.tile * kDecodeTile + lane * lane_keys;
    // The layout stores keys in groups, so only whole groups are contiguous.
    constexpr int kGroup = kIsE4m3<C> ? kScaledKeys : 8;
    const int num_keys =
        (min(kDecodeTile, at.context - at.tile * kDecodeTile) + kGroup - 1) / kGroup * kGroup;
    if (num_keys > 0) {
      const int own = min(lane_keys, num_keys - lane * lane_keys);
      if (own > 0 && block < 0)
        block = p.block_tables[int64_t{at.slot} * p.max_blocks + first / p.layout.block_size];
      if (prefetch_keys && (at.tile + 1) * kDecodeTile >= at.context) {
        wait_for_previous_kernel();
        prefetch_keys = false;
      }
      if (lane == 0) {
        barrier_wait(ring.empty(to.stage), to.parity ^ 1);
        barrier_arrive_expect(ring.full(to.stage), 2 * num_keys * Ring::kBytes);
      }
      __syncwarp();
      if (own > 0) {
        const int64_t from =
            p.layout.entry(block, at.head) + first % p.layout.block_size * Ring::kBytes;
        const uint32_t k = ring.stage(to.stage) + lane * lane_keys * Ring::kBytes;
        const uint32_t bytes = own * Ring::kBytes, full = ring.full(to.stage);
        bulk_copy(k, static_cast<const char*>(p.k) + from, bytes, full);
        bulk_copy(k + Ring::kHalf, static_cast<const char*>(p.v) + from, bytes, full);
      }
      to.advance();
    }
    if (--count == 0) return;
  }
#endif
}

}  // namespace nanovllm::cuda::decode
