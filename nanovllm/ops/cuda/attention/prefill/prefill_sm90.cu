#include <algorithm>
#include <limits>

#include "nanovllm/ops/cuda/attention/dispatch.cuh"
#include "nanovllm/ops/cuda/attention/prefill/prefill_copy.cuh"
#include "nanovllm/ops/cuda/attention/prefill/prefill_parts.cuh"
#include "nanovllm/ops/cuda/attention/prefill/prefill_softmax.cuh"
#include "nanovllm/ops/cuda/device/wgmma.cuh"

// Causal attention of many new tokens over a paged cache, for Hopper (sm_90a):
//
//   out[i, h] = sum_j p[j] v[j, g] / sum_j p[j],  p[j] = exp(scale q[i, h] . k[j, g] - max),
//
// for new token i of a sequence with n new ones and a context of c keys, j < c - n + i + 1, and
// g = h / (num_heads / num_kv_heads). The tensor cores bound it, as long as the softmax between
// their two products is hidden. The maximum and the sum are updated with each block of keys
// (online softmax). The structure is FlashAttention-3's (Shah et al., 2024): producer warps that
// only copy, and two consumer warpgroups that use the tensor cores in turns (ping-pong), each of
// which computes the scores of the next key block during the softmax of this one. Sums are rescaled
// only when the maximum has grown by more than a factor of 2^8, as in FlashAttention-4. This is
// exact, because both sums have the same factor.
//
// In the cache, K and V already have the layout that wgmma needs (kv_layout.cuh), so they are
// copied to shared memory unchanged.
//
// A thread block is persistent: it computes one tile after the other. It has four producer warps
// (prefill_copy.cuh), one of which finds the tiles (prefill_tiles.cuh), and two consumer
// warpgroups. A tile is 128 rows: 64 tokens of two query heads that share a KV head if the ratio is
// even, else 128 tokens of one head; each warpgroup has 64 rows of one head. Key blocks of
// kBlockKeys keys are processed from the last one (which the causal mask cuts) to the first. The
// pipeline continues across tiles: the first scores of a tile are computed together with the last P
// V of the previous tile. If there are too few tiles for all thread blocks, their keys are divided
// (prefill_parts.cuh).
namespace nanovllm::cuda {
namespace {

using namespace hopper;
using namespace prefill;

constexpr int kThreads = 384;  // a warpgroup of producers, then two of consumers
// Registers of a thread after the producers have given some to the consumers. The three warpgroups
// start with 168 for each thread; if together they asked for more than 3 * 168, they would wait
// forever.
constexpr int kProducerRegisters = 56;
constexpr int kConsumerRegisters = 224;
static_assert(kProducerRegisters + 2 * kConsumerRegisters <= 3 * 168);

// -- kernel

/// Computes the tiles of the thread block in consumer warpgroup `group`. kDivides says whether the
/// keys of a tile may be divided into parts.
template <class T, int kHeadDim, bool kDivides>
__device__ __forceinline__ void attend(const PrefillParams& params,
                                       typename Shape<kHeadDim>::Shared& shared, int group) {
  using S = Shape<kHeadDim>;
  constexpr int kKeys = S::kBlockKeys;
  const int lane = threadIdx.x % 32;
  const int warp = threadIdx.x / 32 % 4;
  const AttentionParams& args = params.args;
  const bool two_heads = params.group_heads == 2;
  const int own_row = (two_heads ? 0 : group * kRows) + warp * 16;  // in the tile's tokens
  const float scale_log2 = params.scale_log2;

  float o[kHeadDim / 2];
  float s[kKeys / 2];
  uint32_t p[kKeys / 4];
  Softmax softmax;

  RingCursor<kTileStages> tiles;
  RingCursor<S::kQStages> q_ring;
  RingCursor<S::kStages> ring;

  auto release = [&](uint64_t* barrier) {
    if (lane == 0) barrier_arrive(shared_address(barrier));
  };
  auto start_scores = [&](int stage) {  // S = Q K^T
    const uint64_t q_tile =
        tile_descriptor(shared_address(shared.q[q_ring.stage][group]), 1024, 16);
    const uint64_t k_tile = tile_descriptor(shared_address(shared.kv[stage]), S::kGroupBytes, 16);
#pragma unroll
    for (int i = 0; i < kHeadDim / 16; ++i) {
      Wgmma<T, kKeys>::ss(s, q_tile + (i / 4 * (kRows * 128) + i % 4 * 32) / 16,
                          k_tile + (i / 4 * 1024 + i % 4 * 32) / 16, i > 0);
    }
    wgmma_commit();
  };
  auto start_values = [&](int stage) {  // O += P V
    const uint64_t v_tile = tile_descriptor(shared_address(shared.kv[stage]), S::kGroupBytes, 1024);
#pragma unroll
    for (int i = 0; i < kKeys / 16; ++i) {
      Wgmma<T, kHeadDim>::rs(o, p + 4 * i, v_tile + i * (2 * S::kGroupBytes / 16), 1);
    }
    wgmma_commit();
  };
  auto clear_output = [&] {
#pragma unroll
    for (int i = 0; i < kHeadDim / 2; ++i) o[i] = 0;
  };
  auto pack_weights = [&] {
#pragma unroll
    for (int i = 0; i < kKeys / 4; ++i) p[i] = pack<T>(s[2 * i], s[2 * i + 1]);
  };
  auto write = [&](const Tile& tile, float(&sums)[2], const float(&maxima)[2]) {
    if (kDivides && tile.part.count > 1) {
      if (!store_part<kHeadDim>(params, tile.part, group, o, maxima, sums)) return;
      merge_parts<kHeadDim>(params, tile.part, group, o, sums);
    }
    const int64_t stride = static_cast<int64_t>(args.num_heads) * kHeadDim;
    const int head = tile.head_group * params.group_heads + (two_heads ? group : 0);
    T* out = static_cast<T*>(args.out) + (tile.token + own_row) * stride + head * kHeadDim;
    write_rows<T, kHeadDim>(o, sums, out, stride, tile.num_tokens - own_row);
  };
  const auto first_block = [](const Tile& tile) { return kDivides ? tile.first_block : 0; };
  // Turns at the tensor cores: named barrier 1 + group begins this group's turn.
  auto wait_for_turn = [&] { named_barrier_sync(1 + group, 256); };
  auto pass_turn = [&] { named_barrier_arrive(2 - group, 256); };

  Tile tile = read_tile(shared, tiles);
  if (tile.end_block == 0) return;
  if (group == 1) pass_turn();
  int block = tile.end_block - 1;
  softmax.reset();
  clear_output();

  // The first scores of the thread block run alone.
  barrier_wait(shared_address(&shared.q_full[q_ring.stage][group]), q_ring.parity);
  barrier_wait(shared_address(&shared.kv_full[ring.stage]), ring.parity);
  wgmma_fence();
  start_scores(ring.stage);
  wgmma_wait<0>();
  pin(s);
  release(&shared.kv_empty[ring.stage]);
  ring.advance();
  if (block == first_block(tile)) release(&shared.q_empty[q_ring.stage][group]);
  mask(s, tile.first_limit + own_row + lane / 4 - block * kKeys);
  float2 factors;
  softmax.raise_maxima(s, scale_log2, factors);
  softmax.template weigh<0, kKeys / 2>(s, scale_log2);
  pack_weights();

  for (;;) {
    // At this point p holds the weights of key block `block` of `tile`, and o holds the weighted
    // sum over the key blocks behind it.
    const Tile done = tile;
    const bool new_tile = block == first_block(tile);
    if (new_tile) {
      tile = read_tile(shared, tiles);
      if (tile.end_block == 0) {
        tile = done;
        break;
      }
      q_ring.advance();
      block = tile.end_block;
      barrier_wait(shared_address(&shared.q_full[q_ring.stage][group]), q_ring.parity);
    }
    --block;

    const int k_stage = ring.stage;
    barrier_wait(shared_address(&shared.kv_full[k_stage]), ring.parity);
    ring.advance();
    wait_for_turn();
    pin(o);
    pin(p);
    wgmma_fence();
    start_scores(k_stage);
    const int v_stage = ring.stage;
    barrier_wait(shared_address(&shared.kv_full[v_stage]), ring.parity);
    ring.advance();
    wgmma_fence();
    start_values(v_stage);
    pass_turn();

    wgmma_wait<1>();
    pin(s);
    release(&shared.kv_empty[k_stage]);
    if (block == first_block(tile)) release(&shared.q_empty[q_ring.stage][group]);
    const int limit = tile.first_limit + own_row - block * kKeys;
    if (limit < kKeys) mask(s, limit + lane / 4);
    float done_sum[2] = {softmax.sum[0], softmax.sum[1]};
    const float done_maximum[2] = {softmax.maximum[0], softmax.maximum[1]};
    if (new_tile) softmax.reset();
    const bool rescales = softmax.raise_maxima(s, scale_log2, factors);
    softmax.template weigh<0, kKeys / 4>(s, scale_log2);

    // The first half of the weights is computed while P V runs, and the second half while they are
    // packed into p, which P V must have read before. Sums are never negative: this branch depends
    // on all weights of the first half, so that the compiler cannot move them behind the wait.
    if (softmax.sum[0] + softmax.sum[1] < 0) __trap();
    wgmma_wait<0>();
    pin(o);
    pin(p);
    release(&shared.kv_empty[v_stage]);
    if (new_tile) {
      write(done, done_sum, done_maximum);
      clear_output();
    } else if (rescales) {
#pragma unroll
      for (int i = 0; i < kHeadDim / 2; ++i) o[i] *= i / 2 % 2 == 0 ? factors.x : factors.y;
    }
    softmax.template weigh<kKeys / 4, kKeys / 2>(s, scale_log2);
    pack_weights();
  }

  barrier_wait(shared_address(&shared.kv_full[ring.stage]), ring.parity);
  pin(o);
  pin(p);
  wgmma_fence();
  start_values(ring.stage);
  wgmma_wait<0>();
  pin(o);
  write(tile, softmax.sum, softmax.maximum);
}

template <class T, int kHeadDim, bool kDivides>
__global__ void __launch_bounds__(kThreads, 1)
    prefill_kernel(const __grid_constant__ PrefillParams params) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  using S = Shape<kHeadDim>;
  extern __shared__ uint8_t raw[];
  auto& shared =
      *reinterpret_cast<typename S::Shared*>(raw + (1024 - shared_address(raw) % 1024) % 1024);
  const int warp = __shfl_sync(kAllLanes, threadIdx.x / 32, 0);

  if (threadIdx.x == 0) {
    constexpr int kWarps = 8;  // warps of both consumer warpgroups
    for (int i = 0; i < kTileStages; ++i) {
      barrier_init(shared_address(&shared.tile_full[i]), 1);
      barrier_init(shared_address(&shared.tile_empty[i]), kWarps + 3);
    }
    for (int i = 0; i < S::kQStages; ++i) {
      for (int group = 0; group < 2; ++group) {
        barrier_init(shared_address(&shared.q_full[i][group]), 32);
        barrier_init(shared_address(&shared.q_empty[i][group]), kWarps / 2);
      }
    }
    for (int i = 0; i < S::kStages; ++i) {
      barrier_init(shared_address(&shared.kv_full[i]), 1);
      barrier_init(shared_address(&shared.kv_empty[i]), kWarps);
    }
    fence_barrier_init();
  }
  __syncthreads();

  if (warp < 4) {
    give_registers<kProducerRegisters>();
    if (warp == 0) {
      copy_keys<kHeadDim>(params, shared);
    } else if (warp == 1) {
      schedule<kHeadDim>(params, shared);
    } else {
      copy_q<kHeadDim>(params, shared, warp - 2);
    }
  } else {
    take_registers<kConsumerRegisters>();
    attend<T, kHeadDim, kDivides>(params, shared, warp / 4 - 1);
  }
#endif
}

// -- launcher

/// The most key blocks of a part, or kNotDivided if whole tiles are as fast. It is found as if all
/// tiles were as long as the longest one: with p parts each, the thread blocks compute their parts
/// in some waves, and merging takes about as long as a few key blocks.
int longest_part(const PrefillParams& params, int num_sms, int block_keys,
                 std::span<const PrefillLengths> lengths) {
  constexpr int kLeastBlocks = 8, kMergeBlocks = 4;
  const auto blocks_of = [&](int keys) { return (keys + block_keys - 1) / block_keys; };
  const int tile_tokens = 1 << params.log2_tile_tokens;
  int64_t num_tiles = params.args.num_tokens / tile_tokens * params.num_groups;
  if (num_tiles > most_parts(num_sms)) return kNotDivided;
  int64_t cost = 0;  // in key blocks
  int most_blocks = 0;
  num_tiles = 0;
  for (const auto& [num_new, context] : lengths) {
    if (num_new <= 1) continue;
    const int64_t tiles = int64_t{params.num_groups} * ((num_new + tile_tokens - 1) / tile_tokens);
    num_tiles += tiles;
    const int first = blocks_of(std::min(context, context - num_new + tile_tokens));
    cost += tiles * (first + blocks_of(context) + 1) / 2;
    most_blocks = std::max(most_blocks, blocks_of(context));
  }
  int longest = most_blocks;
  int64_t least = std::numeric_limits<int64_t>::max();
  for (int parts = 1; parts <= kMostParts; ++parts) {
    const int length = (most_blocks + parts - 1) / parts;
    if (parts > 1 && (length < kLeastBlocks || num_tiles + cost / length > most_parts(num_sms)))
      break;
    const int64_t tiles_per_wave = int64_t{most_blocks} * num_sms;
    const int64_t waves = (cost * parts + tiles_per_wave - 1) / tiles_per_wave;
    const int64_t time = waves * length + (parts > 1 ? kMergeBlocks + parts : 0);
    if (time < least) least = time, longest = length;
  }
  return longest < most_blocks ? longest : kNotDivided;
}

template <class T, int kHeadDim>
void run(Launch where, PrefillParams params, std::span<const PrefillLengths> lengths) {
  using S = Shape<kHeadDim>;
  constexpr int kBytes = sizeof(typename S::Shared) + 1024;  // room to align it
  params.longest_part = longest_part(params, where.num_sms, S::kBlockKeys, lengths);
  where.overlaps = false;  // the kernel does not call wait_for_previous_kernel()
  const auto start = [&]<bool kDivides>(int64_t most_blocks) {
    constexpr auto kernel = prefill_kernel<T, kHeadDim, kDivides>;
    allow_shared_memory<kernel>();
    cuda::launch(where, kernel, blocks_for(std::min<int64_t>(where.num_sms, most_blocks)), kThreads,
                 kBytes, params);
  };
  const int64_t most_tiles =
      (static_cast<int64_t>(params.args.num_tokens >> params.log2_tile_tokens) +
       params.args.num_seqs) *
      params.num_groups;
  if (params.longest_part == kNotDivided) start.template operator()<false>(most_tiles);
  else start.template operator()<true>(where.num_sms);
}

}  // namespace

int64_t prefill_partial_size(int num_sms, int head_dim) {
  return int64_t{2} * most_parts(num_sms) * part_floats(head_dim);
}

int64_t num_prefill_counters(int num_sms) {
  return kPrefillCounters + int64_t{2} * most_parts(num_sms);
}

void prefill_attention_sm90(Launch where, const AttentionParams& args,
                            std::span<const PrefillLengths> lengths, const PrefillScratch& scratch,
                            DType dtype) {
  check_args(args.layout.tiled && !args.layout.is_e4m3() && args.layout.block_size % 16 == 0,
             "prefill_attention_sm90: needs a tiled cache of 16-bit elements with blocks of a "
             "multiple of 16 keys");
  const int ratio = args.num_heads / args.layout.num_kv_heads;
  const int group_heads = ratio % 2 == 0 ? 2 : 1;
  const PrefillParams params = {
      .args = args,
      .scratch = scratch,
      .longest_part = kNotDivided,
      .group_heads = group_heads,
      .num_groups = args.num_heads / group_heads,
      .kv_groups = ratio / group_heads,
      .log2_tile_tokens = group_heads == 2 ? 6 : 7,
      .copy_keys = std::min(128, args.layout.block_size & -args.layout.block_size),
      .scale_log2 = args.scale * kLog2e};
  with_tiled_type(dtype, args.layout.head_dim, [&](auto type, auto head_dim) {
    run<decltype(type), head_dim()>(where, params, lengths);
  });
}

}  // namespace nanovllm::cuda
