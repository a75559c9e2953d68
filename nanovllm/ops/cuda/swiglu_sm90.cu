#include <algorithm>

#include "nanovllm/ops/cuda/device.cuh"
#include "nanovllm/ops/cuda/swiglu.h"
#include "nanovllm/ops/cuda/tensor_map.cuh"
#include "nanovllm/ops/cuda/wgmma.cuh"

// The MLP's first product with SwiGLU on Hopper: gates and ups of the same features lie in one
// tile, so that only what becomes of them is written. Blocks stay and take tile after tile. One
// thread copies by tensor maps through a ring; two warpgroups multiply. The two blocks of a cluster
// have the same tokens, and each fetches half of them for both.
#pragma nv_diag_suppress 177  // of targets other than Hopper: what only its kernel uses
namespace nanovllm::cuda {
namespace {

using namespace hopper;

constexpr int kColumns = kBoxColumns;  // of k in a stage
constexpr int kRowBytes = 128;
constexpr int kThreads = 384;  // two warpgroups and the copier's
constexpr int kRingBytes = 224 << 10;
constexpr int kGroupTokens = 2048;  // that all features take in turn: they stay in the L2

struct Params {
  CUtensorMap w, x;  // boxes of kHalfFeatures and kHalfTokens rows
  Bf16* out;
  int num_tokens, n, k;
  Soon soon;
};

/// kTokens by kFeatures of out. The warpgroups have half of the tokens each; where those are but
/// 64, half of the features.
template <int kTokens_, int kFeatures_>
struct Tile {
  static constexpr int kTokens = kTokens_, kFeatures = kFeatures_;
  static constexpr int kHalfTokens = kTokens / 2, kHalfFeatures = kFeatures / 2;
  static constexpr bool kSplitsFeatures = kTokens == 64;
  static constexpr int kBlocks = kSplitsFeatures ? 1 : kTokens / 128;  // of 64 tokens, a warpgroup
  static constexpr int kGroupFeatures = kSplitsFeatures ? kHalfFeatures : kFeatures;
  static constexpr int kStageBytes = (kTokens + 2 * kFeatures) * kRowBytes;
  static constexpr int kStages = kRingBytes / kStageBytes;
  static constexpr int kSharedBytes = kStages * (kStageBytes + 16);
  /// Where a stage has a half of the gates (0) or the ups (1).
  static __device__ int w_offset(int half, int which) {
    const int place = kSplitsFeatures ? 2 * half + which : 2 * which + half;
    return (kTokens + place * kHalfFeatures) * kRowBytes;
  }
};

/// Which tiles a cluster takes i-th: of tokens, and the first of two of features.
struct Order {
  int token_tiles, pairs, group;
  __device__ Order(const Params& p, int tokens, int features)
      : token_tiles((p.num_tokens + tokens - 1) / tokens),
        pairs((p.n + 2 * features - 1) / (2 * features)),
        group(kGroupTokens / tokens) {}
  __device__ int count() const { return token_tiles * pairs; }
  __device__ int2 at(int i) const {
    const int first = i / (group * pairs) * group, size = min(group, token_tiles - first);
    const int rest = i - first * pairs;
    return {first + rest % size, rest / size * 2};
  }
};

/// A 4 by 4 transposition among four neighbouring lanes: lane q gets word q of each.
__device__ __forceinline__ uint4 transpose_quad(uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
  const bool odd = threadIdx.x & 1, upper = threadIdx.x & 2;
  const uint32_t x = __shfl_xor_sync(0xffffffff, odd ? a : b, 1);
  const uint32_t y = __shfl_xor_sync(0xffffffff, odd ? c : d, 1);
  const uint32_t low0 = odd ? x : a, high0 = odd ? b : x, low1 = odd ? y : c, high1 = odd ? d : y;
  const uint32_t u = __shfl_xor_sync(0xffffffff, upper ? low0 : low1, 2);
  const uint32_t v = __shfl_xor_sync(0xffffffff, upper ? high0 : high1, 2);
  return upper ? uint4{u, v, low1, high1} : uint4{low0, high0, u, v};
}

/// Two neighbours of silu(gate) * up, rounded as the separate operations do. One reciprocal serves
/// both: the special function unit is what bounds this.
__device__ __forceinline__ uint32_t swiglu_pair(const float* gate, const float* up) {
  constexpr float kLog2e = 1.44269504f, kMaxExponent = 60;  // so that the product is finite
  const uint32_t g = pack<Bf16>(gate[0], gate[1]), u = pack<Bf16>(up[0], up[1]);
  const auto low = [](uint32_t v) { return __uint_as_float(v << 16); };
  const auto high = [](uint32_t v) { return __uint_as_float(v & 0xffff0000); };
  const float a = exp2_approx(fminf(low(g) * -kLog2e, kMaxExponent)) + 1;
  const float b = exp2_approx(fminf(high(g) * -kLog2e, kMaxExponent)) + 1;
  const float r = __fdividef(1, a * b);
  return pack<Bf16>(low(g) * (b * r) * low(u), high(g) * (a * r) * high(u));
}

template <class Tile>
__global__ void __launch_bounds__(kThreads, 1) swiglu_kernel(const __grid_constant__ Params p) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  constexpr int kStages = Tile::kStages;
  extern __shared__ __align__(1024) unsigned char memory[];
  const uint32_t shared = shared_address(memory);
  const auto stage_at = [&](int stage) { return shared + stage * Tile::kStageBytes; };
  const auto full = [&](int stage) { return stage_at(kStages) + stage * 8; };
  const auto empty = [&](int stage) { return full(kStages + stage); };
  const int thread = threadIdx.x, rank = cluster_rank();
  const Order order(p, Tile::kTokens, Tile::kFeatures);
  const int num_chunks = (p.k + kColumns - 1) / kColumns;
  const int first_tile = blockIdx.x / 2, step = gridDim.x / 2;
  if (thread == 256) {
    for (int stage = 0; stage < kStages; ++stage) {
      barrier_init(full(stage), 1);
      barrier_init(empty(stage), 4);  // both blocks' warpgroups
    }
    fence_barrier_init();
    prefetch_map(p.w);
    prefetch_map(p.x);
  }
  __syncwarp();
  cluster_arrive();
  cluster_wait();

  RingCursor<kStages> at;
  if (thread >= 256) {
    give_registers<40>();
    if (thread == 256) {
      const auto fetch_w = [&](int feature, int chunk, int stage) {
        barrier_arrive_expect(full(stage), Tile::kStageBytes);
#pragma unroll
        for (int half = 0; half < 2; ++half)
#pragma unroll
          for (int which = 0; which < 2; ++which)
            box_copy(stage_at(stage) + Tile::w_offset(half, which), p.w, chunk * kColumns,
                     which * p.n + feature + half * Tile::kHalfFeatures, full(stage));
      };
      // Weights are older than the kernel before.
      const int ahead = min(kStages, num_chunks);
      const int first_feature = (order.at(first_tile).y + rank) * Tile::kFeatures;
      for (int chunk = 0; chunk < ahead; ++chunk) fetch_w(first_feature, chunk, chunk);
      begin_kernel();
      for (int tile = first_tile; tile < order.count(); tile += step) {
        // Its place is computed once: this thread has just the time to keep the ring full.
        const int2 place = order.at(tile);
        const int feature = (place.y + rank) * Tile::kFeatures;
        const int token = place.x * Tile::kTokens + rank * Tile::kHalfTokens;
        const uint32_t x_offset = rank * Tile::kHalfTokens * kRowBytes;
        for (int chunk = 0; chunk < num_chunks; ++chunk, at.advance()) {
          if (tile != first_tile || chunk >= ahead) {
            barrier_wait(empty(at.stage), at.parity ^ 1);
            fetch_w(feature, chunk, at.stage);
          }
          box_copy_to_cluster(stage_at(at.stage) + x_offset, p.x, chunk * kColumns, token,
                              full(at.stage), 3);
        }
      }
      fetch(p.soon);
    }
    __syncwarp();
  } else {
    take_registers<232>();
    const int group = thread / 128, lane = thread % 32;
    const int x_offset = Tile::kSplitsFeatures ? 0 : group * Tile::kHalfTokens * kRowBytes;
    const int w_offset = Tile::w_offset(Tile::kSplitsFeatures ? group : 0, 0);
    float sums[Tile::kBlocks][Tile::kGroupFeatures];
    // Both blocks copy here.
    const auto release = [&](int stage) {
      if (thread % 128 < 2) remote_barrier_arrive(remote_address(empty(stage), thread % 128));
    };
    for (int tile = first_tile; tile < order.count(); tile += step) {
      int before = 0;
      for (int chunk = 0; chunk < num_chunks; ++chunk, at.advance()) {
        barrier_wait(full(at.stage), at.parity);
        const uint32_t x = stage_at(at.stage) + x_offset, w = stage_at(at.stage) + w_offset;
        wgmma_fence();
#pragma unroll
        for (int i = 0; i < kColumns / 16; ++i)
#pragma unroll
          for (int block = 0; block < Tile::kBlocks; ++block)
            Wgmma<Bf16, 2 * Tile::kGroupFeatures>::ss(
                sums[block], tile_descriptor(x + block * 64 * kRowBytes + i * 32, 1024, 0),
                tile_descriptor(w + i * 32, 1024, 0), chunk + i > 0);
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

      const int2 place = order.at(tile);
      const int feature = (place.y + rank) * Tile::kFeatures +
                          (Tile::kSplitsFeatures ? group * Tile::kHalfFeatures : 0);
      const int first_token =
          place.x * Tile::kTokens + x_offset / kRowBytes + thread % 128 / 32 * 16 + lane / 4;
#pragma unroll
      for (int row = 0; row < 2 * Tile::kBlocks; ++row) {
        const int token = first_token + row / 2 * 64 + row % 2 * 8;
        Bf16* const out = p.out + int64_t{token} * p.n + feature;
        const auto word = [&](int j) {  // features 8 j + lane % 4 * 2 and the next
          const float* const gate = sums[row / 2] + 4 * j + row % 2 * 2;
          return swiglu_pair(gate, gate + Tile::kGroupFeatures / 2);
        };
        const auto there = [&](int column) {
          return token < p.num_tokens && feature + column < p.n;
        };
        constexpr int kWords = Tile::kGroupFeatures / 8, kInFours = kWords / 4 * 4;
#pragma unroll
        for (int j = 0; j < kInFours; j += 4) {
          const uint4 y = transpose_quad(word(j), word(j + 1), word(j + 2), word(j + 3));
          const int column = (j + lane % 4) * 8;
          if (there(column)) *reinterpret_cast<uint4*>(out + column) = y;
        }
#pragma unroll
        for (int j = kInFours; j < kWords; ++j) {
          const uint32_t y = word(j);
          const int column = j * 8 + lane % 4 * 2;
          if (there(column)) *reinterpret_cast<uint32_t*>(out + column) = y;
        }
      }
    }
    __syncwarp();
  }
  cluster_arrive();  // nobody has more for this block's barriers
  cluster_wait();
#endif
}

/// Blocks that fit on the GPU at once, in clusters of two.
template <class Tile>
int max_blocks() {
  constexpr auto kernel = swiglu_kernel<Tile>;
  cuda_check(
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, Tile::kSharedBytes),
      "shared memory");
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

template <class Tile>
void run(Launch where, Tensor out, Tensor x, Tensor w) {
  static const int fit = max_blocks<Tile>();
  const auto n = static_cast<int>(out.shape[1]), k = static_cast<int>(x.shape[1]);
  const auto num_tokens = static_cast<int>(x.shape[0]);
  const auto parts = [](int count, int size) { return (count + size - 1) / size; };
  const int blocks =
      std::min(fit, 2 * parts(num_tokens, Tile::kTokens) * parts(n, 2 * Tile::kFeatures));
  const Params params = {.w = tensor_map(w.data, 2 * n, k, Tile::kHalfFeatures),
                         .x = tensor_map(x.data, num_tokens, k, Tile::kHalfTokens),
                         .out = out.as<Bf16>(),
                         .num_tokens = num_tokens,
                         .n = n,
                         .k = k,
                         .soon = Soon(where, static_cast<unsigned>(blocks), size_t{8} << 20)};
  launch(ClusterLaunch{where, 2}, swiglu_kernel<Tile>, dim3(static_cast<unsigned>(blocks)),
         kThreads, static_cast<size_t>(Tile::kSharedBytes), params);
}

}  // namespace

void swiglu_sm90(Launch where, Tensor out, Tensor x, Tensor w, int tile) {
  check_args(has_swiglu_sm90(out, x), "swiglu_sm90: a dtype or shape that it does not serve");
  switch (tile) {
    case 0:
      return run<Tile<64, 48>>(where, out, x, w);
    case 1:
      return run<Tile<64, 96>>(where, out, x, w);
    case 2:
      return run<Tile<128, 48>>(where, out, x, w);
    case 3:
      return run<Tile<128, 96>>(where, out, x, w);
    default:
      return run<Tile<256, 96>>(where, out, x, w);
  }
}

}  // namespace nanovllm::cuda
