#pragma once

#include "nanovllm/ops/cuda/gemm/tile.cuh"

// The main loop of a GEMM in tiles on Hopper, without its epilogue. It is warp-specialised: one
// producer thread copies w and x with TMA into a ring of stages in shared memory, and two or three
// consumer warpgroups multiply. The two thread blocks of a cluster have the same tokens, and each
// copies half of them to both (multicast). Thread blocks are persistent: they compute one tile
// after the other.
namespace nanovllm::cuda {

/// One unit of a thread block's work: the first token and column of a tile of out, and the part of
/// k, which is the chunks [begin, end). Tokens from last_token on belong to other tiles. first_row
/// is the row of w that gives column 0 of out.
struct Item {
  int token, column, part, begin, end, last_token, first_row = 0;
};
/// The order of the items. The two thread blocks of a cluster take items of the same tokens and
/// part at the same time, with neighbouring columns.
template <class Tile>
struct Order {
  int rank, group, token_tiles, column_pairs, num_chunks, split_bits, num_tokens;
  __device__ Order(const TileParams& p, int rank_)
      : rank(rank_),
        group(p.group),
        token_tiles((p.args.num_tokens + Tile::kTokens - 1) / Tile::kTokens),
        column_pairs((p.args.n + 2 * Tile::kOutColumns - 1) / (2 * Tile::kOutColumns)),
        num_chunks((p.args.k + kChunk - 1) / kChunk),
        split_bits(Tile::kSwiglu ? 0 : p.split_bits),
        num_tokens(p.args.num_tokens) {}
  __device__ int count() const { return token_tiles * column_pairs << split_bits; }
  __device__ Item at(int i) const {
    const int tile = i >> split_bits, part = i - (tile << split_bits);
    int first = 0;  // the first token tile of the group
    if (token_tiles > group) first = tile / (group * column_pairs) * group;
    const int size = min(group, token_tiles - first), rest = tile - first * column_pairs;
    const int pair = rest / size;
    return {.token = (first + rest - pair * size) * Tile::kTokens,
            .column = (2 * pair + rank) * Tile::kOutColumns,
            .part = part,
            .begin = num_chunks * part >> split_bits,
            .end = num_chunks * (part + 1) >> split_bits,
            .last_token = num_tokens};
  }
};

/// The order of the items of a grouped GEMM. Which tiles there are is known only on the device, so
/// some thread blocks may have no item; at() may be called for as many items as the grid has.
template <class Tile>
struct GroupedOrder {
  const TokenTile* tiles;
  int rank, column_pairs, num_chunks, rows, num_tiles;
  __device__ GroupedOrder(const TileParams& p, int rank_)
      : tiles(p.groups.tiles),
        rank(rank_),
        column_pairs((p.args.n + 2 * Tile::kOutColumns - 1) / (2 * Tile::kOutColumns)),
        num_chunks((p.args.k + kChunk - 1) / kChunk),
        rows(Tile::kSwiglu ? 2 * p.args.n : p.args.n) {
    if (!p.groups.are_old) wait_for_previous_kernel();
    num_tiles = *p.groups.num_tiles;
  }
  __device__ int count() const { return num_tiles * column_pairs; }
  __device__ Item at(int i) const {
    const int index = i / column_pairs, pair = i - index * column_pairs;
    const TokenTile tile = tiles[index];
    return {.token = tile.first,
            .column = (2 * pair + rank) * Tile::kOutColumns,
            .part = 0,
            .begin = 0,
            .end = num_chunks,
            .last_token = tile.last,
            .first_row = tile.group * rows};
  }
};

constexpr int kNormBarrier = 4;  // a named barrier: the factors of the norm are there

/// A warp that neither copies nor multiplies finishes a deferred norm: it computes 1 / rms of each
/// token. A lane has two tokens.
__device__ __forceinline__ void finish_norm(const TileParams& p, float* factors) {
  constexpr int kAtOnce = 8;  // parts that a lane loads at once
  static_assert(kNormTokens == 2 * 32);
  const int token = static_cast<int>(threadIdx.x) % 32 * 2;
  float2 squares = {};
  for (int part = 0; part < p.norm.num_parts; part += kAtOnce) {
    float2 loaded[kAtOnce] = {};
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i)
      if (part + i < p.norm.num_parts)
        loaded[i] = __ldcg(
            reinterpret_cast<const float2*>(p.norm.squares + (part + i) * kNormTokens + token));
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) squares.x += loaded[i].x, squares.y += loaded[i].y;
  }
  factors[token] = rms_factor(squares.x, p.args.k, p.args.eps);
  factors[token + 1] = rms_factor(squares.y, p.args.k, p.args.eps);
}

/// The consumers call epilogue = make_epilogue() once, then epilogue(corner, item, sums) for each
/// of the thread block's items, and epilogue.finish() in the end.
template <class Tile, class Order = Order<Tile>, class MakeEpilogue>
__device__ __forceinline__ void run_tiles(const TileParams& p, const MakeEpilogue& make_epilogue) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  constexpr int kStages = Tile::kStages;
  extern __shared__ __align__(1024) unsigned char memory[];
  const uint32_t shared = shared_address(memory);
  const auto stage_at = [&](int stage) { return shared + stage * Tile::kStageBytes; };
  const auto full = [&](int stage) { return stage_at(kStages) + stage * 8; };
  const auto empty = [&](int stage) { return full(kStages + stage); };
  const int thread = threadIdx.x, rank = cluster_rank();
  if (thread == Tile::kConsumers) prefetch_tensor_map(p.w);
  const Order order(p, rank);
  __shared__ float norm_factors[kNormTokens];
  const int step = gridDim.x / 2;
  int i = blockIdx.x / 2;
  Item item = order.at(i);
  const int count = order.count();
  if (i >= count) return;  // both thread blocks of the cluster
  const auto fetch_w = [&](int chunk, int stage) {
    barrier_arrive_expect(full(stage), Tile::kStageBytes);
#pragma unroll
    for (int box = 0; box < Tile::kBoxes; ++box)
      box_copy(stage_at(stage) + Tile::box_offset(box), p.w, chunk * kChunk,
               item.first_row + Tile::box_row(item.column, box, p.args.n), full(stage));
  };
  int prefetched_end = min(item.begin + kStages, item.end);
  if (thread == Tile::kConsumers) {
    for (int stage = 0; stage < kStages; ++stage) {
      barrier_init(full(stage), 1);
      barrier_init(empty(stage), 2 * Tile::kConsumerGroups);  // of both thread blocks
    }
    fence_barrier_init();
    // No kernel of the step writes weights, so they are prefetched before the previous one ends.
    for (int chunk = item.begin; chunk < prefetched_end; ++chunk)
      fetch_w(chunk, chunk - item.begin);
    prefetch_tensor_map(p.x);
  }
  __syncwarp();
  cluster_sync_relaxed();  // both thread blocks have initialised their barriers

  RingCursor<kStages> at;
  if (thread >= Tile::kConsumers) {
    give_registers<40>();
    if (thread == Tile::kConsumers) {
      begin_kernel();
      for (;;) {
        // Computed outside of the loop, since this thread has hardly enough time to keep the ring
        // full.
        const int token = item.token + rank * Tile::kHalfTokens;
        const uint32_t x_offset = rank * Tile::kHalfTokens * kChunkBytes;
        for (int chunk = item.begin; chunk < item.end; ++chunk, at.advance()) {
          if (chunk >= prefetched_end) {
            barrier_wait(empty(at.stage), at.parity ^ 1);
            fetch_w(chunk, at.stage);
          }
          box_copy_multicast(stage_at(at.stage) + x_offset, p.x, chunk * kChunk, token,
                             full(at.stage), 3);
        }
        i += step;
        if (i >= count) break;
        item = order.at(i);
        prefetched_end = item.begin;
      }
      // This thread block must not end before both have read all that it copied, since the other
      // one arrives at its barriers.
      for (int stage = 0; stage < kStages; ++stage, at.advance())
        barrier_wait(empty(at.stage), at.parity ^ 1);
    } else if (thread / 32 == Tile::kConsumers / 32 + 1 && p.norm.squares != nullptr) {
      wait_for_previous_kernel();
      finish_norm(p, norm_factors);
      named_barrier_arrive(kNormBarrier, Tile::kConsumers + 32);
    }
  } else {
    take_registers<Tile::kRegisters>();
    wait_for_previous_kernel();
    auto epilogue = make_epilogue();
    const int group = thread / 128;
    const int x_offset = Tile::kSplitsRows ? 0 : group * Tile::kBlocks * 64 * kChunkBytes;
    const int w_offset =
        (Tile::kTokens + (Tile::kSplitsRows ? group * Tile::kGroupRows : 0)) * kChunkBytes;
    bool waits_for_norm = p.norm.squares != nullptr;
    TileSums<Tile> sums;
    // The producers of both thread blocks write to this stage, so both are told that it is free.
    const auto release = [&](int stage) {
      if (thread % 128 < 2) remote_barrier_arrive(remote_address(empty(stage), thread % 128));
    };
    for (;;) {
      Corner corner = {
          item.token + x_offset / kChunkBytes + thread % 128 / 32 * 16 + thread % 32 / 4,
          item.column + (Tile::kSplitsRows ? group * Tile::kOutColumns / 2 : 0), item.last_token,
          p.norm.squares != nullptr ? norm_factors : nullptr};
      // Keeps the compiler from moving this computation behind the multiplications.
      asm volatile("" : "+r"(corner.first_token), "+r"(corner.first_column));
      int before = 0;
      const int num = item.end - item.begin;
#pragma unroll 1
      for (int chunk = 0; chunk < num; ++chunk, at.advance()) {
        barrier_wait(full(at.stage), at.parity);
        const uint32_t x = stage_at(at.stage) + x_offset, w = stage_at(at.stage) + w_offset;
        wgmma_fence();
#pragma unroll
        for (int k = 0; k < kChunk / 16; ++k)
#pragma unroll
          for (int block = 0; block < Tile::kBlocks; ++block)
            Wgmma<Bf16, Tile::kGroupRows>::ss(
                sums[block], tile_descriptor(x + block * 64 * kChunkBytes + k * 32, 1024, 0),
                tile_descriptor(w + k * 32, 1024, 0), chunk + k > 0);
        wgmma_commit();
        if (chunk > 0) {
          wgmma_wait<1>();
          release(before);
        }
        before = at.stage;
      }
      wgmma_wait<0>();
      release(before);
#pragma unroll
      for (int block = 0; block < Tile::kBlocks; ++block) pin(sums[block]);
      if (waits_for_norm) named_barrier_sync(kNormBarrier, Tile::kConsumers + 32);
      waits_for_norm = false;
      epilogue(corner, item, sums);
      i += step;
      if (i >= count) break;
      item = order.at(i);
    }
    epilogue.finish();
  }
#endif
}

// -- launcher

/// How many thread blocks, in clusters of two, run on the GPU at the same time.
template <class Tile, class Kernel>
int max_tile_blocks_of(Kernel* kernel) {
  const auto set = [&](cudaFuncAttribute what, int value) {
    cuda_check(cudaFuncSetAttribute(kernel, what, value), "shared memory");
  };
  set(cudaFuncAttributeMaxDynamicSharedMemorySize, Tile::kSharedBytes);
  set(cudaFuncAttributePreferredSharedMemoryCarveout, cudaSharedmemCarveoutMaxShared);
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim = {2, 1, 1};
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(2);
  config.blockDim = dim3(Tile::kThreads);
  config.dynamicSmemBytes = Tile::kSharedBytes;
  config.attrs = &attribute;
  config.numAttrs = 1;
  int clusters = 0;
  cuda_check(cudaOccupancyMaxActiveClusters(&clusters, kernel, &config), "clusters");
  return 2 * clusters;
}

}  // namespace nanovllm::cuda
