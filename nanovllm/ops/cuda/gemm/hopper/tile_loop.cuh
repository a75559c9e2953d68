#pragma once

#include "nanovllm/ops/cuda/gemm/hopper/tile.cuh"
#include "nanovllm/ops/cuda/gemm/quantized/hopper/dequantizer.cuh"
#include "nanovllm/ops/cuda/gemm/quantized/hopper/e4m3_multiply.cuh"

// The main loop of a GEMM in tiles on Hopper, without its epilogue. It is warp-specialised: two
// threads copy w and x with TMA into a ring of stages in shared memory, and two or three consumer
// warpgroups multiply. The two thread blocks of a cluster have the same tokens, and each copies
// half of them to both (multicast). Thread blocks are persistent: they compute one tile after the
// other. A quantized w that is converted to bfloat16 goes through a second ring (tile.cuh).
namespace nanovllm::cuda {

/// One unit of a thread block's work: the first token and column of a tile of out, and the part of
/// k, which is the chunks [begin, end). Tokens from last_token on belong to other tiles. first_row
/// is the row of w that gives column 0 of out.
struct Item {
  int token, column, part, begin, end, last_token, first_row = 0;
};
/// How many steps of Tile::kStep chunks k has.
template <class Tile>
__host__ __device__ inline int steps_of(int k) {
  constexpr int kColumns = Tile::kStep * Tile::kColumns;
  return (k + kColumns - 1) / kColumns;
}
/// The order of the items. The two thread blocks of a cluster take items of the same tokens and
/// part at the same time, with neighbouring columns.
template <class Tile>
struct Order {
  static constexpr bool kSplits = !Tile::kSwiglu;  // k may be split
  int rank, group, token_tiles, column_pairs, num_steps, split_bits, num_tokens;
  __device__ Order(const TileParams& p, int rank_)
      : rank(rank_),
        group(p.group),
        token_tiles((p.args.num_tokens + Tile::kTokens - 1) / Tile::kTokens),
        column_pairs((p.args.n + 2 * Tile::kOutColumns - 1) / (2 * Tile::kOutColumns)),
        num_steps(steps_of<Tile>(p.args.k)),
        split_bits(kSplits ? p.split_bits : 0),
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
            .begin = (num_steps * part >> split_bits) * Tile::kStep,
            .end = (num_steps * (part + 1) >> split_bits) * Tile::kStep,
            .last_token = num_tokens};
  }
};

/// The order of the items of a grouped GEMM. Which tiles there are is known only on the device, so
/// some thread blocks may have no item; at() may be called for as many items as the grid has.
template <class Tile>
struct GroupedOrder {
  static constexpr bool kSplits = false;
  const TokenTile* tiles;
  int rank, column_pairs, num_steps, rows, num_tiles;
  __device__ GroupedOrder(const TileParams& p, int rank_)
      : tiles(p.groups.tiles),
        rank(rank_),
        column_pairs((p.args.n + 2 * Tile::kOutColumns - 1) / (2 * Tile::kOutColumns)),
        num_steps(steps_of<Tile>(p.args.k)),
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
            .end = num_steps * Tile::kStep,
            .last_token = tile.last,
            .first_row = tile.group * rows};
  }
};

constexpr int kNormBarrier = 4;  // a named barrier that waits until the norm's factors are known

/// Finishes a deferred norm: computes 1 / rms of each token, in a warp that neither copies nor
/// multiplies. A lane has two tokens.
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

/// The thread that copies w, into raw stages if w is quantized. No kernel of the step writes
/// weights, so the thread waits for none.
template <class Tile, class Order>
struct WeightProducer {
  static constexpr int kStages = Tile::kQuantized ? Tile::kRawStages : Tile::kStages;
  const typename Tile::Params& p;
  const Rings<Tile> rings;

  __device__ void fetch(const Item& item, int step, int stage) const {
    const auto row_of = [&](int box) {
      return item.first_row + Tile::box_row(item.column, box, p.args.n);
    };
    if constexpr (Tile::kQuantized) {
      using Stage = RawStage<typename Tile::Format>;
      const uint32_t there = rings.raw_full(stage);
      barrier_arrive_expect(there, Stage::copied_bytes(p.raw, Tile::kRows, Tile::kBoxes));
#pragma unroll
      for (int box = 0; box < Tile::kBoxes; ++box)
        Stage::copy(p.raw, rings.raw_stage(stage), Tile::kRows, Tile::kBoxes, Tile::box_place(box),
                    step, row_of(box), there);
    } else {
      const uint32_t there = rings.full(stage);
      barrier_arrive_expect(there, Tile::kStageBytes + Tile::kScaleBytes);  // x too
#pragma unroll
      for (int box = 0; box < Tile::kBoxes; ++box)
        box_copy(rings.stage(stage) + Tile::box_offset(box), p.w, step * Tile::kColumns,
                 row_of(box), there);
    }
  }
  __device__ static int prefetched_end(const Item& item) {
    return min(item.begin / Tile::kStep + kStages, item.end / Tile::kStep);
  }
  /// Copies the first stages.
  __device__ void begin(const Item& item) const {
    if constexpr (Tile::kQuantized) {
      prefetch_tensor_map(p.raw.values);
      prefetch_tensor_map(p.raw.scales);
    } else {
      prefetch_tensor_map(p.w);
    }
    const int first = item.begin / Tile::kStep;
    for (int step = first; step < prefetched_end(item); ++step) fetch(item, step, step - first);
  }
  __device__ void copy(const Order& order, Item item, int i, int stride) const {
    RingCursor<kStages> at;
    int prefetched = prefetched_end(item);
    for (;;) {
      for (int step = item.begin / Tile::kStep; step < item.end / Tile::kStep;
           ++step, at.advance()) {
        if (step < prefetched) continue;
        barrier_wait(Tile::kQuantized ? rings.raw_empty(at.stage) : rings.empty(at.stage),
                     at.parity ^ 1);
        fetch(item, step, at.stage);
      }
      i += stride;
      if (i >= order.count()) return;
      item = order.at(i);
      prefetched = 0;
    }
  }
};

/// The thread that copies this thread block's half of x to both.
template <class Tile, class Order>
__device__ __forceinline__ void copy_x(const typename Tile::Params& p, const Rings<Tile>& rings,
                                       const Order& order, Item item, int i, int stride) {
  const int first = cluster_rank() * Tile::kHalfTokens;
  RingCursor<Tile::kStages> at;
  begin_kernel();
  for (;;) {
    for (int chunk = item.begin; chunk < item.end; ++chunk, at.advance()) {
      const uint32_t there = rings.full(at.stage);
      barrier_wait(rings.empty(at.stage), at.parity ^ 1);
      if constexpr (Tile::kQuantized) barrier_arrive_expect(there, Tile::kTokens * kChunkBytes);
      box_copy_multicast(rings.stage(at.stage) + first * kChunkBytes, p.x, chunk * Tile::kColumns,
                         item.token + first, there, 3);
      if constexpr (Tile::kE4M3)
        box_copy_multicast(rings.scales(at.stage) + first * 4, p.x_scales, item.token + first,
                           chunk, there, 3);
    }
    i += stride;
    if (i >= order.count()) break;
    item = order.at(i);
  }
  // This thread block must not end before both have read all that it copied, since the other one
  // arrives at its barriers.
  for (int stage = 0; stage < Tile::kStages; ++stage, at.advance())
    barrier_wait(rings.empty(at.stage), at.parity ^ 1);
}

/// The warpgroup that converts the raw stages of a quantized w to bfloat16.
template <class Tile, class Order>
__device__ __forceinline__ void dequantize_tiles(const QuantizedTileParams& p,
                                                 const Rings<Tile>& rings, const Order& order,
                                                 Item item, int i, int stride) {
  using Format = typename Tile::Format;
  constexpr int kRowsOfThread = (Tile::kRows + 127) / 128;
  const int thread = threadIdx.x % 128;
  RingCursor<Tile::kStages> at;
  RingCursor<Tile::kRawStages> raw;
  for (;;) {
    int scales[kRowsOfThread];
#pragma unroll
    for (int j = 0; j < kRowsOfThread; ++j) {
      const int row = thread + j * 128, place = row / Tile::kBoxRows;
      const int first =
          item.first_row + Tile::box_row(item.column, Tile::box_place(place), p.args.n);
      scales[j] =
          RawStage<Format>::scale(p.raw.weight, Tile::kRows, Tile::kBoxes, row, place, first);
    }
    for (int step = item.begin / Tile::kStep; step < item.end / Tile::kStep;
         ++step, raw.advance()) {
      barrier_wait(rings.raw_full(raw.stage), raw.parity);
      const int chunk_offset = RawStage<Format>::chunk_offset(p.raw.weight, step);
#pragma unroll 1
      for (int half = 0; half < Tile::kStep; ++half, at.advance()) {
        barrier_wait(rings.empty(at.stage), at.parity ^ 1);
        const uint32_t to = rings.stage(at.stage) + Tile::kTokens * kChunkBytes;
#pragma unroll
        for (int j = 0; j < kRowsOfThread; ++j) {
          const int row = thread + j * 128;
          if (Tile::kRows % 128 == 0 || row < Tile::kRows)
            DequantizedRow<Format>{row, scales[j] + chunk_offset}.convert(
                p.raw, rings.raw_stage(raw.stage), Tile::kBoxRows, half, to);
        }
        fence_async_proxy();
        __syncwarp();  // all lanes have written and fenced
        if (thread % 32 == 0) barrier_arrive(rings.full(at.stage));
      }
      if (thread % 32 == 0) barrier_arrive(rings.raw_empty(raw.stage));
    }
    i += stride;
    if (i >= order.count()) return;
    item = order.at(i);
  }
}

/// Runs all warps of a thread block. The consumers call epilogue = make_epilogue() once, then
/// epilogue(corner, item, sums) for each of the thread block's items, and epilogue.finish() in the
/// end.
template <class Tile, class Order = Order<Tile>, class MakeEpilogue>
__device__ __forceinline__ void run_tiles(const typename Tile::Params& p,
                                          const MakeEpilogue& make_epilogue) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  constexpr int kStages = Tile::kStages;
  extern __shared__ __align__(1024) unsigned char memory[];
  const Rings<Tile> rings = {shared_address(memory)};
  const int thread = threadIdx.x, rank = cluster_rank();
  const Order order(p, rank);
  __shared__ float norm_factors[kNormTokens];
  const int step = gridDim.x / 2;
  int i = blockIdx.x / 2;
  Item item = order.at(i);
  const int count = order.count();
  if (i >= count) return;  // both thread blocks of the cluster
  // Each thread that copies is in a warp of its own, since a copy takes many instructions.
  constexpr int kXThread = Tile::kConsumers, kWeightThread = Tile::kConsumers + 64;
  const WeightProducer<Tile, Order> weights = {p, rings};
  if (thread == kWeightThread) {
    for (int stage = 0; stage < kStages; ++stage) {
      barrier_init(rings.full(stage), Tile::kQuantized ? 1 + 4 : 1);  // dequantizer: four warps
      barrier_init(rings.empty(stage), 2 * Tile::kConsumerGroups);    // in both thread blocks
    }
    for (int stage = 0; stage < Tile::kRawStages; ++stage) {
      barrier_init(rings.raw_full(stage), 1);
      barrier_init(rings.raw_empty(stage), 4);  // warps of the dequantizer
    }
    fence_barrier_init();
    weights.begin(item);
  }
  if (thread == kXThread) prefetch_tensor_map(p.x);
  __syncwarp();
  cluster_sync_relaxed();  // both thread blocks have initialised their barriers

  if (thread >= Tile::kConsumers) {
    if constexpr (Tile::kQuantized)
      if (thread >= Tile::kConsumers + 128) {
        give_registers<Tile::kDequantizerRegisters>();
        return dequantize_tiles<Tile>(p, rings, order, item, i, step);
      }
    give_registers<Tile::kProducerRegisters>();
    if (thread == kXThread) copy_x<Tile>(p, rings, order, item, i, step);
    else if (thread == kWeightThread) weights.copy(order, item, i, step);
    else if (thread / 32 == Tile::kConsumers / 32 + 1 && p.norm.squares != nullptr) {
      wait_for_previous_kernel();
      finish_norm(p, norm_factors);
      named_barrier_arrive(kNormBarrier, Tile::kConsumers + 32);
    }
  } else {
    take_registers<Tile::kRegisters>();
    wait_for_previous_kernel();
    auto epilogue = make_epilogue();
    const int group = __shfl_sync(kAllLanes, thread / 128, 0);  // uniform for the compiler
    const int x_offset = Tile::kSplitsRows ? 0 : group * Tile::kBlocks * 64 * kChunkBytes;
    const int w_offset =
        (Tile::kTokens + (Tile::kSplitsRows ? group * Tile::kGroupRows : 0)) * kChunkBytes;
    bool waits_for_norm = p.norm.squares != nullptr;
    RingCursor<kStages> at;
    TileSums<Tile> sums;
    // The producers of both thread blocks write to this stage, so both are told that it is free.
    const auto release = [&](int stage) {
      if (thread % 128 < 2) remote_barrier_arrive(remote_address(rings.empty(stage), thread % 128));
    };
    for (;;) {
      Corner corner = {
          item.token + x_offset / kChunkBytes + thread % 128 / 32 * 16 + thread % 32 / 4,
          item.column + (Tile::kSplitsRows ? group * Tile::kOutColumns / 2 : 0), item.last_token,
          p.norm.squares != nullptr ? norm_factors : nullptr};
      // Keeps the compiler from moving this computation behind the multiplications.
      asm volatile("" : "+r"(corner.first_token), "+r"(corner.first_column));
      const int num = item.end - item.begin;
      if constexpr (Tile::kE4M3) {
        const typename E4M3Multiplier<Tile>::Offsets offsets = {
            x_offset, w_offset, (corner.first_token - item.token) * 4, corner.first_token >> 31};
        E4M3Multiplier<Tile>(p, rings, offsets, item.first_row + corner.first_column, item.begin,
                             num)
            .run(sums, at, release);
      } else {
        int before = 0;
#pragma unroll 1
        for (int chunk = 0; chunk < num; ++chunk, at.advance()) {
          barrier_wait(rings.full(at.stage), at.parity);
          const uint32_t x = rings.stage(at.stage) + x_offset, w = rings.stage(at.stage) + w_offset;
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
      }
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
