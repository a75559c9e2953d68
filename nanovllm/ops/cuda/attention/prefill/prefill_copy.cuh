#pragma once

#include "nanovllm/ops/cuda/attention/prefill/prefill_tiles.cuh"
#include "nanovllm/ops/cuda/device/hopper.cuh"

// The producer warps of prefill_sm90.cu, and the layout of shared memory. One warp publishes the
// tiles of the thread block, one copies blocks of keys and values, and two copy q. Each fills its
// ring in shared memory as long as there is a free stage.
namespace nanovllm::cuda::prefill {
using namespace hopper;

inline constexpr int kRows = 64;  // rows of q in a consumer warpgroup
inline constexpr int kTileStages = 2;

template <int kHeadDim>
struct Shape {
  static constexpr int kBlockKeys = kHeadDim == 256 ? 64 : 128;
  static constexpr int kQStages = 2;
  static constexpr int kStages = kHeadDim == 64 ? 8 : kHeadDim == 128 ? 5 : 3;  // for K and V
  static constexpr int kKeyBytes = kHeadDim * 2;
  static constexpr int kBlockBytes = kBlockKeys * kKeyBytes;
  static constexpr int kQBytes = kRows * kHeadDim * 2;
  static constexpr int kGroupBytes = 8 * kKeyBytes;  // 8 keys

  struct alignas(1024) Shared {
    uint8_t kv[kStages][kBlockBytes];  // in the order of use: K0, K1, V0, K2, V1, ...
    uint8_t q[kQStages][2][kQBytes];
    Tile tiles[kTileStages];
    uint64_t tile_full[kTileStages], tile_empty[kTileStages];
    uint64_t q_full[kQStages][2], q_empty[kQStages][2];
    uint64_t kv_full[kStages], kv_empty[kStages];
  };
};

template <class Shared>
__device__ Tile read_tile(Shared& shared, RingCursor<kTileStages>& cursor) {
  barrier_wait(shared_address(&shared.tile_full[cursor.stage]), cursor.parity);
  const Tile tile = shared.tiles[cursor.stage];
  __syncwarp();
  if (threadIdx.x % 32 == 0) barrier_arrive(shared_address(&shared.tile_empty[cursor.stage]));
  cursor.advance();
  return tile;
}

/// Publishes the tiles of the thread block in shared memory. It takes the place of the next tile
/// from a counter of all thread blocks, and waits while kTileStages tiles have not been read yet.
template <int kHeadDim>
__device__ void schedule(const PrefillParams& params, typename Shape<kHeadDim>::Shared& shared) {
  const bool leader = threadIdx.x % 32 == 0;
  int32_t* const counters = params.scratch.counters;
  TileScheduler<Shape<kHeadDim>::kBlockKeys, kHeadDim> scheduler(params);
  RingCursor<kTileStages> cursor;
  for (int place = blockIdx.x;;) {
    const Tile tile = scheduler.at(place);
    if (leader) shared.tiles[cursor.stage] = tile;
    if (leader) barrier_arrive(shared_address(&shared.tile_full[cursor.stage]));
    if (tile.end_block == 0) break;
    cursor.advance();
    barrier_wait(shared_address(&shared.tile_empty[cursor.stage]), cursor.parity ^ 1);
    if (leader) place = gridDim.x + atomicAdd(&counters[0], 1);
    place = __shfl_sync(kAllLanes, place, 0);
  }
  // The last thread block to get here resets the counters for the next launch.
  if (leader) {
    __threadfence();
    if (atomicAdd(&counters[1], 1) == static_cast<int>(gridDim.x) - 1) {
      counters[0] = 0;
      counters[1] = 0;
    }
  }
}

/// A key block to copy. Lane i copies its keys [i * copy_keys, (i + 1) * copy_keys), which are in
/// block `id` of the cache.
struct KeyBlock {
  int id;
  int first_key;
  int context;
  int kv_head;
};

/// Copies one key block of K or V, without keys beyond the context, which may be NaN.
template <int kHeadDim>
__device__ void copy_block(const PrefillParams& params, const void* pool, uint32_t to,
                           uint32_t barrier, const KeyBlock& block) {
  using S = Shape<kHeadDim>;
  const int lane = threadIdx.x % 32;
  const int num_keys = min(S::kBlockKeys, block.context - block.first_key);
  if (lane == 0) barrier_arrive_expect(barrier, num_keys * S::kKeyBytes);
  __syncwarp();
  const int own = lane * params.copy_keys;
  const int count = min(params.copy_keys, num_keys - own);
  if (own < S::kBlockKeys && count > 0) {
    const int block_size = params.args.layout.block_size;
    const int64_t head =
        static_cast<int64_t>(block.id) * params.args.layout.num_kv_heads + block.kv_head;
    const uint8_t* from = static_cast<const uint8_t*>(pool) +
                          (head * block_size + (block.first_key + own) % block_size) * S::kKeyBytes;
    to += own * S::kKeyBytes;
    const int whole = count / 8 * S::kGroupBytes;
    if (whole > 0) bulk_copy(to, from, whole, barrier);
    if (count % 8 != 0) {
      for (int panel = 0; panel < kHeadDim / 64; ++panel) {
        const int offset = whole + panel * 1024;
        bulk_copy(to + offset, from + offset, count % 8 * 128, barrier);
      }
    }
  }
}

/// Sets the values of a key block from num_keys on to zero. Their weights are 0, but the memory may
/// hold NaN, and 0 * NaN is NaN.
template <int kHeadDim>
__device__ void clear_tail(uint32_t to, int num_keys) {
  using S = Shape<kHeadDim>;
  const int lane = threadIdx.x % 32;
  // Clear the end of the last group of 8 keys, one panel of 64 dimensions after the other, then all
  // groups behind it.
  const int group = num_keys / 8 * S::kGroupBytes;
  if (num_keys % 8 != 0) {
    for (int panel = 0; panel < kHeadDim / 64; ++panel) {
      for (int at = num_keys % 8 * 128 + lane * 16; at < 1024; at += 512) {
        store_shared_zeros16(to + group + panel * 1024 + at);
      }
    }
  }
  const int rest = (num_keys + 7) / 8 * S::kGroupBytes;
#pragma unroll 4
  for (int at = rest + lane * 16; at < S::kBlockBytes; at += 512) store_shared_zeros16(to + at);
  fence_async_proxy();
  __syncwarp();
}

/// Copies the key blocks of all tiles: K of a block, then V of the previous block, which is the
/// order in which the warpgroups use them.
template <int kHeadDim>
__device__ void copy_keys(const PrefillParams& params, typename Shape<kHeadDim>::Shared& shared) {
  using S = Shape<kHeadDim>;
  const int lane = threadIdx.x % 32;
  const AttentionParams& args = params.args;
  RingCursor<kTileStages> tiles;
  RingCursor<S::kStages> ring;

  auto copy = [&](const void* pool, const KeyBlock& block, bool is_v) {
    barrier_wait(shared_address(&shared.kv_empty[ring.stage]), ring.parity ^ 1);
    const uint32_t to = shared_address(shared.kv[ring.stage]);
    const int num_keys = block.context - block.first_key;
    if (is_v && num_keys < S::kBlockKeys) clear_tail<kHeadDim>(to, num_keys);
    copy_block<kHeadDim>(params, pool, to, shared_address(&shared.kv_full[ring.stage]), block);
    ring.advance();
  };
  auto block_id = [&](const Tile& tile, int block) {
    const int key = block * S::kBlockKeys + lane * params.copy_keys;
    if (lane * params.copy_keys >= S::kBlockKeys || block < 0 || key >= tile.context) return 0;
    return __ldg(args.block_tables + static_cast<int64_t>(tile.slot) * args.max_blocks +
                 key / args.layout.block_size);
  };

  KeyBlock previous{};
  bool pending = false;  // V of `previous` has not been copied yet
  for (;;) {
    const Tile tile = read_tile(shared, tiles);
    if (tile.end_block == 0) break;
    int id = block_id(tile, tile.end_block - 1);
    for (int block = tile.end_block - 1; block >= tile.first_block; --block) {
      const KeyBlock now{id, block * S::kBlockKeys, tile.context,
                         tile.head_group / params.kv_groups};
      id = block_id(tile, block - 1);  // loaded while this warp waits for a free stage
      copy(args.k, now, false);
      if (pending) copy(args.v, previous, true);
      previous = now;
      pending = true;
    }
  }
  if (pending) copy(args.v, previous, true);
}

/// Copies the rows of q of one warpgroup, as K-major panels of [64 rows][64 dims].
template <int kHeadDim>
__device__ void copy_q(const PrefillParams& params, typename Shape<kHeadDim>::Shared& shared,
                       int group) {
  using S = Shape<kHeadDim>;
  constexpr int kChunks = kHeadDim / 8;  // pieces of 16 bytes in a row
  const int lane = threadIdx.x % 32;
  const AttentionParams& args = params.args;
  const int64_t row_bytes =
      static_cast<int64_t>(args.num_heads + 2 * args.layout.num_kv_heads) * S::kKeyBytes;
  RingCursor<kTileStages> tiles;
  RingCursor<S::kQStages> ring;
  for (;;) {
    const Tile tile = read_tile(shared, tiles);
    if (tile.end_block == 0) return;
    const int head = tile.head_group * params.group_heads + (params.group_heads == 2 ? group : 0);
    const int first = params.group_heads == 2 ? 0 : group * kRows;
    const uint8_t* from = static_cast<const uint8_t*>(args.qkv) + tile.token * row_bytes +
                          head * S::kKeyBytes + lane % kChunks * 16;
    barrier_wait(shared_address(&shared.q_empty[ring.stage][group]), ring.parity ^ 1);
    const uint32_t to = shared_address(shared.q[ring.stage][group]);
    const int chunk = lane % kChunks;
#pragma unroll 8
    for (int row = lane / kChunks; row < kRows; row += 32 / kChunks) {
      // Rows beyond the sequence repeat its last one; their results are not written.
      const int token = min(first + row, tile.num_tokens - 1);
      async_copy16(to + chunk / 8 * (kRows * 128) + row * 128 + ((chunk ^ row) % 8) * 16,
                   from + token * row_bytes);
    }
    wait_all_async_copies();
    fence_async_proxy();
    barrier_arrive(shared_address(&shared.q_full[ring.stage][group]));
    ring.advance();
  }
}

}  // namespace nanovllm::cuda::prefill
