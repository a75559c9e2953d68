#include "nanovllm/ops/cuda/tile_matmul.cuh"

#include <algorithm>
#include <array>
#include <bit>
#include <utility>

// Products of a batch or a prompt on Hopper. Tokens are wgmma's M, rows of w its N. One thread
// copies by tensor maps through a ring; two warpgroups multiply. The two blocks of a cluster have
// the same tokens, and each fetches half of them for both. With SwiGLU, gates and ups of the same
// features lie in one tile, so that only what becomes of them is written; blocks stay and take tile
// after tile. Where there are fewer tiles than multiprocessors, several blocks share out the k of
// one: each hands the others its sums of what they finish, which are added in the order of k.
#pragma nv_diag_suppress 177  // of targets other than Hopper: what only its kernel uses
namespace nanovllm::cuda {
namespace {

/// What a block computes: its first token and column of out, and a part of k, from chunk to chunk.
struct Item {
  int token, column, part, begin, end;
};
/// The blocks of a cluster take items of the same tokens and part, and neighbouring columns.
template <class Tile>
struct Order {
  int rank, group, token_tiles, column_pairs, num_chunks, split_bits;
  __device__ Order(const Params& p, int rank_)
      : rank(rank_),
        group(p.group),
        token_tiles((p.args.num_tokens + Tile::kTokens - 1) / Tile::kTokens),
        column_pairs((p.args.n + 2 * Tile::kOutColumns - 1) / (2 * Tile::kOutColumns)),
        num_chunks((p.args.k + kColumns - 1) / kColumns),
        split_bits(Tile::kSwiglu ? 0 : p.split_bits) {}
  __device__ int count() const { return token_tiles * column_pairs << split_bits; }
  __device__ Item at(int i) const {
    const int tile = i >> split_bits, part = i - (tile << split_bits);
    int first = 0;  // token tile of the group
    if (token_tiles > group) first = tile / (group * column_pairs) * group;
    const int size = min(group, token_tiles - first), rest = tile - first * column_pairs;
    const int pair = rest / size;
    return {.token = (first + rest - pair * size) * Tile::kTokens,
            .column = (2 * pair + rank) * Tile::kOutColumns,
            .part = part,
            .begin = num_chunks * part >> split_bits,
            .end = num_chunks * (part + 1) >> split_bits};
  }
};

// -- kernel

template <class Tile>
__global__ void __launch_bounds__(kThreads, Tile::kIsLight ? 2 : 1)
    tile_kernel(const __grid_constant__ Params p) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  constexpr int kStages = Tile::kStages;
  extern __shared__ __align__(1024) unsigned char memory[];
  const uint32_t shared = shared_address(memory);
  const auto stage_at = [&](int stage) { return shared + stage * Tile::kStageBytes; };
  const auto full = [&](int stage) { return stage_at(kStages) + stage * 8; };
  const auto empty = [&](int stage) { return full(kStages + stage); };
  const int thread = threadIdx.x, rank = cluster_rank();
  const Order<Tile> order(p, rank);
  const int count = order.count(), step = gridDim.x / 2;
  int i = blockIdx.x / 2;
  Item item = order.at(i);
  const auto fetch_w = [&](int chunk, int stage) {
    barrier_arrive_expect(full(stage), Tile::kStageBytes);
#pragma unroll
    for (int box = 0; box < Tile::kBoxes; ++box)
      box_copy(stage_at(stage) + Tile::box_offset(box), p.w, chunk * kColumns,
               Tile::box_row(item.column, box, p.args.n), full(stage));
  };
  int ahead = min(item.begin + kStages, item.end);
  if (thread == kMultiplying) {
    for (int stage = 0; stage < kStages; ++stage) {
      barrier_init(full(stage), 1);
      barrier_init(empty(stage), 4);  // both blocks' warpgroups
    }
    fence_barrier_init();
    // Weights are older than the kernel before.
    for (int chunk = item.begin; chunk < ahead; ++chunk) fetch_w(chunk, chunk - item.begin);
    prefetch_map(p.x);
  }
  __syncwarp();
  cluster_sync_relaxed();  // all barriers are there

  RingCursor<kStages> at;
  if (thread >= kMultiplying) {
    give_registers<40>();
    if (thread == kMultiplying) {
      begin_kernel();
      for (;;) {
        // Its place is computed once: this thread has just the time to keep the ring full.
        const int token = item.token + rank * Tile::kHalfTokens;
        const uint32_t x_offset = rank * Tile::kHalfTokens * kRowBytes;
        for (int chunk = item.begin; chunk < item.end; ++chunk, at.advance()) {
          if (chunk >= ahead) {
            barrier_wait(empty(at.stage), at.parity ^ 1);
            fetch_w(chunk, at.stage);
          }
          box_copy_to_cluster(stage_at(at.stage) + x_offset, p.x, chunk * kColumns, token,
                              full(at.stage), 3);
        }
        i += step;
        if (i >= count) break;
        item = order.at(i);
        ahead = item.begin;
      }
      // Both blocks have read all that this one copied, and have no more for its barriers.
      for (int stage = 0; stage < kStages; ++stage, at.advance())
        barrier_wait(empty(at.stage), at.parity ^ 1);
    }
  } else {
    take_registers<Tile::kIsLight ? 96 : 232>();
    wait_before();
    const int group = thread / 128;
    const int x_offset = Tile::kSplitsRows ? 0 : group * Tile::kHalfTokens * kRowBytes;
    const int w_offset =
        (Tile::kTokens + (Tile::kSplitsRows ? group * Tile::kGroupRows : 0)) * kRowBytes;
    float sums[Tile::kBlocks][Tile::kGroupRows / 2];
    // Both blocks copy here.
    const auto release = [&](int stage) {
      if (thread % 128 < 2) remote_barrier_arrive(remote_address(empty(stage), thread % 128));
    };
    for (;;) {
      Corner corner = {item.token + x_offset / kRowBytes + thread % 128 / 32 * 16 + thread % 32 / 4,
                       item.column + (Tile::kSplitsRows ? group * Tile::kOutColumns / 2 : 0)};
      // Computed here, not behind the products.
      asm volatile("" : "+r"(corner.first_token), "+r"(corner.first_column));
      int before = 0;
      const int num = item.end - item.begin;
#pragma unroll 1
      for (int chunk = 0; chunk < num; ++chunk, at.advance()) {
        barrier_wait(full(at.stage), at.parity);
        const uint32_t x = stage_at(at.stage) + x_offset, w = stage_at(at.stage) + w_offset;
        wgmma_fence();
#pragma unroll
        for (int k = 0; k < kColumns / 16; ++k)
#pragma unroll
          for (int block = 0; block < Tile::kBlocks; ++block)
            Wgmma<Bf16, Tile::kGroupRows>::ss(
                sums[block], tile_descriptor(x + block * 64 * kRowBytes + k * 32, 1024, 0),
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
      if constexpr (Tile::kSwiglu) store_swiglu<Tile>(p, corner, sums);
      else if (p.split_bits > 0) Sums<Tile>{p, corner}.store_part(sums, item.part);
      else Sums<Tile>{p, corner}.store_whole(sums);
      i += step;
      if (i >= count) break;
      item = order.at(i);
    }
  }
#endif
}

// -- launcher

/// Blocks that fit on the GPU at once, in clusters of two.
template <class Tile>
int max_blocks() {
  constexpr auto kernel = tile_kernel<Tile>;
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
  config.blockDim = dim3(kThreads);
  config.dynamicSmemBytes = Tile::kSharedBytes;
  config.attrs = &attribute;
  config.numAttrs = 1;
  int clusters = 0;
  cuda_check(cudaOccupancyMaxActiveClusters(&clusters, kernel, &config), "clusters");
  return 2 * clusters;
}

/// All parts of a product have to fit.
template <TileCut kCut>
int fit() {
  static const int blocks = max_blocks<Tile<kCut.tokens, kCut.rows, kCut.swiglu>>();
  return blocks;
}
template <TileCut kCut>
void run(Launch where, const SmallMatmul& args, const TileCut& cut, const TileScratch& scratch) {
  using T = Tile<kCut.tokens, kCut.rows, kCut.swiglu>;
  const int num_blocks = cut.blocks(args.num_tokens, args.n);
  const int blocks = std::min(std::min(fit<kCut>(), where.num_sms) / 2 * 2, num_blocks);
  const Params params = {
      .w = tensor_map(args.w, T::kSwiglu ? 2 * args.n : args.n, args.k, T::kBoxRows),
      .x = tensor_map(args.x, args.num_tokens, args.k, T::kHalfTokens),
      .args = args,
      .group =
          static_cast<int>(std::max<int64_t>(kGroupBytes / (int64_t{2} * args.k * T::kTokens), 1)),
      .split_bits = std::countr_zero(static_cast<unsigned>(cut.split)),
      .scratch = scratch};
  launch(ClusterLaunch{where, 2}, tile_kernel<T>, dim3(static_cast<unsigned>(blocks)), kThreads,
         static_cast<size_t>(T::kSharedBytes), params);
}

template <size_t... kIndices>
constexpr auto all_runs(std::index_sequence<kIndices...>) {
  return std::array{run<kTiles[kIndices]>...};
}
constexpr auto kRuns = all_runs(std::make_index_sequence<kNumTiles>());

template <size_t... kIndices>
int least_fit(std::index_sequence<kIndices...>) {
  return std::min({fit<kTiles[kIndices]>()...});
}

}  // namespace

int max_tile_blocks(Launch where) {
  return std::min(where.num_sms, least_fit(std::make_index_sequence<kNumTiles>())) / 2 * 2;
}

void tile_matmul(Launch where, const SmallMatmul& args, int cut, const TileScratch& scratch) {
  check_args(can_tile(args, DType::kBF16, max_tile_blocks(where), tile_cut(cut)),
             "tile_matmul: a shape that it does not serve");
  kRuns[static_cast<size_t>(cut / 3)](where, args, tile_cut(cut), scratch);
}

}  // namespace nanovllm::cuda
