
#include "nanovllm/ops/cuda/attention/attention.h"
#include "nanovllm/ops/cuda/attention/decode/decode_heads.cuh"
#include "nanovllm/ops/cuda/attention/dispatch.cuh"
#include "nanovllm/ops/cuda/device/few_tokens.h"
#include "nanovllm/ops/cuda/device/hopper.cuh"
#include "nanovllm/ops/cuda/elementwise/row_ops.cuh"

// Decode attention of few sequences on Hopper, with the RMSNorm of q and k, their rotation, and the
// store of the newest key and value in the same kernel:
//   out[h] = sum_j softmax(scale rotate(norm(q[h])) . k[j]) v[j].
// With few sequences latency bounds it, not bandwidth: a chain of dependent loads and kernels,
// which becomes one kernel shorter. A cluster of thread blocks computes a KV head of a sequence,
// and each of them has an equal part of the keys; each of its four multiplying warps takes every
// fourth tile of 16 keys. The thread blocks prefetch the old keys while the previous kernel still
// runs, and merge their partial results through each other's shared memory (distributed shared
// memory).
namespace nanovllm::cuda {
namespace {

// Four warps multiply. If a multiprocessor has only one thread block, four more warps help with
// everything else.
constexpr int kWarps = 4, kThreads = kWarps * 32, kMaxThreads = 2 * kThreads;
constexpr int kMaxClusterSize = 16;  // not portable: a kernel has to opt in to more than 8

// -- layout of shared memory

/// Offsets in bytes. The warps' rings come first. When a warp has used all its keys, its ring holds
/// its sums, as DecodeHeads::save() writes them; so two thread blocks fit on a multiprocessor even
/// with 16 query heads for a KV head.
template <class C, int kHeadDim, int kHeadTiles>
struct Layout {
  static constexpr int kMaxHeads = 8 * kHeadTiles;
  static constexpr int kQueryPitch = kHeadDim + 8;  // so that ldmatrix meets no bank conflict
  /// The ring of one warp.
  static constexpr int kRing = kDecodeStages<C, kHeadDim> * kDecodeStageBytes<C, kHeadDim>;
  static constexpr int kQueries = kWarps * kRing;  // [kMaxHeads, kQueryPitch] of a 16-bit type
  static constexpr int kNewestBytes = (kKeyBytes<C, kHeadDim> + 15) / 16 * 16;
  static constexpr int kNewest = kQueries + kMaxHeads * kQueryPitch * 2;  // newest k, then v
  static constexpr int kTotals = kNewest + 2 * kNewestBytes;  // [cluster, group] maximum, total
  static constexpr int kSlices = kTotals + kMaxClusterSize * kMaxHeads * 8;  // [cluster, slice]
  static_assert(kMaxHeads * (kHeadDim + 4) * 4 <= kRing);
  static int bytes(int group) { return kSlices + group * kHeadDim * 4; }
};

// -- kernel

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
/// first ? a : b, element by element, so that both stay in registers.
template <int N>
__device__ Vec<float, N> choose(bool first, const Vec<float, N>& a, const Vec<float, N>& b) {
  Vec<float, N> chosen;
#pragma unroll
  for (int i = 0; i < N; ++i) chosen.x[i] = first ? a.x[i] : b.x[i];
  return chosen;
}
#endif

/// The grid is (sequences, KV heads, thread blocks of a cluster), of which the last varies fastest.
/// kHeadTiles is the number of query heads of a KV head, in tiles of eight. C is the type of the
/// cache's elements.
template <class T, class C, int kHeadDim, int kHeadTiles>
__global__ void __launch_bounds__(kMaxThreads, kHeadTiles == 1 ? 2 : 1)
    decode_cluster_kernel(const RopeDecodeParams params) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  using Heads = DecodeHeads<T, C, kHeadDim, kHeadTiles>;
  using Shared = Layout<C, kHeadDim, kHeadTiles>;
  constexpr int kStages = kDecodeStages<C, kHeadDim>;
  constexpr int kStageBytes = kDecodeStageBytes<C, kHeadDim>, kHalf = kStageBytes / 2;
  constexpr int kPerLane = kHeadDim / 64, kHalfDim = kHeadDim / 2;
  extern __shared__ __align__(1024) unsigned char shared[];
  __shared__ uint64_t barriers[kWarps][kStages], merged;
  const AttentionParams& p = params.attention;
  const RopeParams& r = params.rope;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int num_kv_heads = p.layout.num_kv_heads, group = p.num_heads / num_kv_heads;
  const int cluster_size = hopper::cluster_size(), rank = hopper::cluster_rank();
  const int item = blockIdx.x / cluster_size;
  const int seq = item / num_kv_heads, head = item % num_kv_heads;
  if (!params.prefetch_keys) begin_kernel();

  // The step's arrays were written before the previous kernel began.
  const int context = p.context_lens[seq];
  if (context == 0) return;  // the whole cluster returns
  // This barrier counts the bytes of the partial results that the cluster sends here.
  const int slice = group * kHeadDim / cluster_size;
  if (threadIdx.x == 0) {
    hopper::barrier_init(shared_address(&merged), 1);
    hopper::fence_barrier_init();
    hopper::barrier_arrive_expect(shared_address(&merged), cluster_size * (slice * 4 + group * 8));
  }
  __syncwarp();
  hopper::cluster_arrive();
  const int num_tiles = (context + kDecodeKeys - 1) / kDecodeKeys;
  const int first = num_tiles * rank / cluster_size, end = num_tiles * (rank + 1) / cluster_size;
  const bool has_newest = rank == cluster_size - 1;
  const int32_t* const table = p.block_tables + int64_t{p.seq_slots[seq]} * p.max_blocks;
  const uint32_t ring = shared_address(shared) + warp * Shared::kRing;
  const uint32_t full = shared_address(&barriers[warp][0]);
  const bool multiplies = warp < kWarps;
  if (multiplies && lane < kStages) hopper::barrier_init(full + lane * 8, 1);
  hopper::fence_barrier_init();
  __syncwarp();

  // Each lane holds the cache block of one of the warp's next 32 tiles, and of one of the 32 tiles
  // after these.
  const auto find_block = [&](int n) {
    const int tile = first + warp + n * kWarps;
    return multiplies && tile < end ? table[tile * kDecodeKeys / p.layout.block_size] : 0;
  };
  int blocks = find_block(lane), next_blocks = find_block(32 + lane);
  const auto fetch = [&](int n) {
    const int tile = first + warp + n * kWarps;
    if (!multiplies || tile >= end) return;
    if (n > 0 && n % 32 == 0) {
      blocks = next_blocks;
      next_blocks = find_block(n + 32 + lane);
    }
    const int block = __shfl_sync(kAllLanes, blocks, n % 32);
    if (lane != 0) return;
    const int64_t from = p.layout.entry(block, head) +
                         tile * kDecodeKeys % p.layout.block_size * kKeyBytes<C, kHeadDim>;
    const uint32_t to = ring + n % kStages * kStageBytes;
    const uint32_t barrier = full + n % kStages * 8;
    hopper::barrier_arrive_expect(barrier, 2 * kHalf);
    hopper::bulk_copy(to, static_cast<const char*>(p.k) + from, kHalf, barrier);
    hopper::bulk_copy(to + kHalf, static_cast<const char*>(p.v) + from, kHalf, barrier);
  };
#pragma unroll
  for (int n = 0; n < kStages; ++n) fetch(n);

  const int at = lane * kPerLane;
  const int64_t angle = int64_t{context - 1} * kHalfDim + at;
  const Vec<float, kPerLane> cos = load<kPerLane>(r.cos + angle);
  const Vec<float, kPerLane> sin = load<kPerLane>(r.sin + angle);
  const bool has_norm = r.q_norm != nullptr;
  Vec<float, kPerLane> q_norm_low, q_norm_high, k_norm_low, k_norm_high;
  if (has_norm) {
    q_norm_low = load<kPerLane>(r.q_norm + at);
    q_norm_high = load<kPerLane>(r.q_norm + kHalfDim + at);
    k_norm_low = load<kPerLane>(r.k_norm + at);
    k_norm_high = load<kPerLane>(r.k_norm + kHalfDim + at);
  }
  const int slot = r.slot_mapping[seq];
  T* const queries = reinterpret_cast<T*>(shared + Shared::kQueries);
  for (int i = threadIdx.x + group * Shared::kQueryPitch;
       i < Shared::kMaxHeads * Shared::kQueryPitch; i += blockDim.x)
    queries[i] = from_float<T>(0);
  if (params.prefetch_keys) begin_kernel();

  // Norm and rotate the query heads of the KV head and, in one thread block of the cluster, the
  // newest k; store that k and v. All are loaded before the first one is computed.
  unsigned char* const newest = shared + Shared::kNewest;
  {
    constexpr int kMostHeads = (Shared::kMaxHeads + 2 + kWarps - 1) / kWarps;  // that a warp has
    const T* const token = static_cast<const T*>(p.qkv) + int64_t{seq} * r.num_rows() * kHeadDim;
    const int num_heads = group + (has_newest ? 2 : 0);
    const auto row_of = [&](int h) {
      return h < group ? head * group + h : p.num_heads + (h - group) * num_kv_heads + head;
    };
    const int num_warps = blockDim.x / 32;
    HeadPart<T, kPerLane> parts[kMostHeads];
#pragma unroll
    for (int i = 0; i < kMostHeads; ++i) {
      const int h = warp + i * num_warps;
      if (h >= num_heads) break;
      parts[i].load_from(token + row_of(h) * kHeadDim, kHalfDim, at);
    }
#pragma unroll
    for (int i = 0; i < kMostHeads; ++i) {
      const int h = warp + i * num_warps;
      if (h >= num_heads) break;
      const bool is_q = h < group, is_v = h == group + 1;
      if (!is_v) {
        const float factor =
            has_norm ? rms_factor(warp_sum(parts[i].squares()), kHeadDim, r.eps) : 1.0f;
        parts[i].norm_and_rotate(has_norm, factor, choose(is_q, q_norm_low, k_norm_low),
                                 choose(is_q, q_norm_high, k_norm_high), cos, sin);
      }
      if (is_q) {
        store<kPerLane>(queries + h * Shared::kQueryPitch + at, parts[i].low);
        store<kPerLane>(queries + h * Shared::kQueryPitch + kHalfDim + at, parts[i].high);
        continue;
      }
      // The key or value goes into the cache, and into shared memory for this step.
      const float scale = scale_of_head<C>(parts[i].low, parts[i].high, 32);
      const auto low = cache_elements<C>(parts[i].low, 1 / scale);
      const auto high = cache_elements<C>(parts[i].high, 1 / scale);
      unsigned char* const to = newest + (is_v ? Shared::kNewestBytes : 0);
      store<kPerLane>(reinterpret_cast<C*>(to) + at, low);
      store<kPerLane>(reinterpret_cast<C*>(to) + kHalfDim + at, high);
      if (kIsE4m3<C> && lane == 0) *reinterpret_cast<float*>(to + kHeadDim) = scale;
      if (slot < 0) continue;
      const CacheEntry<C> entry = r.cache_entry<C>(row_of(h), slot);
      entry.store(p.layout, at, low);
      entry.store(p.layout, kHalfDim + at, high);
      if (lane == 0) entry.store_scale(p.layout, scale);
    }
  }
  __syncthreads();

  // Each warp's partial result, over its keys.
  constexpr int kRingFloats = Shared::kRing / 4;
  float* const sums = reinterpret_cast<float*>(shared);
  if (multiplies) {
    Heads heads;
    const float scale = p.scale * kLog2e;
    if constexpr (kIsE4m3<C>) {
      heads.load_queries(queries, Shared::kQueryPitch, Shared::kMaxHeads, scale);
    } else {
#pragma unroll
      for (int e = 0; e < kHeadTiles; ++e)
#pragma unroll
        for (int i = 0; i < kHeadDim / 16; i += 2) {
          uint32_t q[4];
          const int row = e * 8 + lane % 8;
          ldmatrix_x4(q,
                      shared_address(queries + row * Shared::kQueryPitch + i * 16 + lane / 8 * 8));
#pragma unroll
          for (int j = 0; j < 4; ++j) heads.q[2 * i + j][e] = q[j];
        }
    }
    for (int n = 0, tile = first + warp; tile < end; ++n, tile += kWarps) {
      const uint32_t k = ring + n % kStages * kStageBytes;
      hopper::barrier_wait(full + n % kStages * 8, n / kStages % 2);
      if (tile == num_tiles - 1) {
        // This tile was copied before the newest key was stored.
        constexpr int kPerChunk = kPer16Bytes<C>, kChunks = kHeadDim / kPerChunk;
        unsigned char* const stage = shared + (k - shared_address(shared));
        const int row = (context - 1) % kDecodeKeys;
        for (int c = lane; c < 2 * kChunks; c += 32)
          *reinterpret_cast<uint4*>(stage + c / kChunks * kHalf +
                                    p.layout.at(row, c % kChunks * kPerChunk)) =
              *reinterpret_cast<const uint4*>(newest + c / kChunks * Shared::kNewestBytes +
                                              c % kChunks * 16);
        if (kIsE4m3<C> && lane < 2)
          *reinterpret_cast<float*>(stage + lane * kHalf + p.layout.scale_at(row)) =
              *reinterpret_cast<const float*>(newest + lane * Shared::kNewestBytes + kHeadDim);
        __syncwarp();
      }
      heads.add(k, k + kHalf, context - tile * kDecodeKeys, scale);
      __syncwarp();
      fetch(n + kStages);
    }
    heads.save(sums + warp * kRingFloats, group);
  }
  __syncthreads();
  hopper::cluster_wait();  // all thread blocks of the cluster have started

  // st.async is only possible in a cluster of several thread blocks.
  const bool is_alone = cluster_size == 1;
  // Merge over the warps, then over the cluster, where each thread block merges a slice of the
  // elements.
  constexpr int kEach = kMergeWidth;
  float* const slices = reinterpret_cast<float*>(shared + Shared::kSlices);
  float2* const totals = reinterpret_cast<float2*>(shared + Shared::kTotals);
  const uint32_t barrier = shared_address(&merged);
  for (int i = threadIdx.x; i < group * kHeadDim / kEach; i += blockDim.x) {
    const int element = i * kEach, row = element / kHeadDim, d = element % kHeadDim;
    const auto part = merge_parts<kWarps, kHeadDim>(sums + row * Heads::kPitch, kRingFloats, d);
    const float2 of_row = {part.max, part.total};
    if (is_alone) {
      store(slices + element, part.values);
      if (d == 0) totals[row] = of_row;
      continue;
    }
    hopper::remote_store_async(
        reinterpret_cast<ulonglong2*>(slices + rank * slice + element % slice), element / slice,
        bits_as<ulonglong2>(part.values), barrier);
    if (d / kEach < cluster_size)
      hopper::remote_store_async(reinterpret_cast<unsigned long long*>(totals + rank * group + row),
                                 d / kEach, bits_as<unsigned long long>(of_row), barrier);
  }
  if (is_alone) __syncthreads();
  else hopper::barrier_wait(barrier, 0);
  T* const out = static_cast<T*>(p.out) + (int64_t{seq} * p.num_heads + head * group) * kHeadDim;
  for (int i = threadIdx.x * kEach; i < slice; i += blockDim.x * kEach) {
    const int element = rank * slice + i, row = element / kHeadDim;
    float2 parts[kMaxClusterSize];
    float max = -INFINITY, total = 0, value[kEach] = {};
#pragma unroll
    for (int j = 0; j < kMaxClusterSize; ++j) {
      parts[j] = j < cluster_size ? totals[j * group + row] : make_float2(-INFINITY, 0);
      max = fmaxf(max, parts[j].x);
    }
#pragma unroll
    for (int j = 0; j < kMaxClusterSize; ++j) {
      if (j >= cluster_size) break;
      const float weight = exp2f(parts[j].x - max);
      const auto values = load<kEach>(slices + j * slice + i);
      total += parts[j].y * weight;
#pragma unroll
      for (int n = 0; n < kEach; ++n) value[n] += values.x[n] * weight;
    }
    const float inverse = 1 / total;
#pragma unroll
    for (int n = 0; n < kEach; ++n) value[n] *= inverse;
    store(out + element, rounded<T>(value));
  }
#endif
}

// -- launcher

template <auto kKernel>
void prepare_kernel() {
  allow_shared_memory<kKernel>();
  cuda_check(cudaFuncSetAttribute(kKernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1),
             "decode attention");
}

template <class T, class C, int kHeadDim, int kHeadTiles>
void run(Launch where, const RopeDecodeParams& params, int cluster_size) {
  const AttentionParams& p = params.attention;
  const int bytes = Layout<C, kHeadDim, kHeadTiles>::bytes(p.num_heads / p.layout.num_kv_heads);
  constexpr auto kernel = decode_cluster_kernel<T, C, kHeadDim, kHeadTiles>;
  prepare_kernel<kernel>();
  const int num_blocks = p.num_seqs * p.layout.num_kv_heads * cluster_size;
  launch(ClusterLaunch{where, cluster_size}, kernel, blocks_for(num_blocks),
         num_blocks <= where.num_sms ? kMaxThreads : kThreads, static_cast<size_t>(bytes), params);
}

}  // namespace

int most_in_decode_cluster(int num_sms) {
  using Largest = Layout<Bf16, 128, 2>;
  constexpr auto kernel = decode_cluster_kernel<Bf16, Bf16, 128, 2>;
  prepare_kernel<kernel>();
  cudaLaunchConfig_t config = {};
  config.gridDim =
      dim3(static_cast<unsigned>(std::max(num_sms / kMaxClusterSize, 1) * kMaxClusterSize));
  config.blockDim = dim3(kMaxThreads);
  config.dynamicSmemBytes = static_cast<size_t>(Largest::bytes(Largest::kMaxHeads));
  int most = 0;
  cuda_check(cudaOccupancyMaxPotentialClusterSize(&most, kernel, &config), "decode attention");
  return std::min(kMaxClusterSize,
                  static_cast<int>(std::bit_floor(static_cast<unsigned>(std::max(most, 1)))));
}

int decode_cluster_size(Launch where, const KvLayout& layout, int num_seqs, int num_padding,
                        int64_t num_keys, int64_t longest) {
  if (!layout.tiled || layout.head_dim > 128) return 0;
  const int num_heads = num_seqs * layout.num_kv_heads;
  // There is at most one thread block for each multiprocessor, so that those of the next kernel
  // have room; two if otherwise a single thread block would have all keys of a head.
  const auto fitting = [&](int most, int room) {
    while (most > 0 && num_heads * most > room) most /= 2;
    return most;
  };
  // A cluster of 16 takes twice the multiprocessors of one of eight. This is worth it with more
  // than 2,048 keys. If the next kernel still has three quarters of the multiprocessors, it is
  // worth it with more than 512 keys, because then some warps in a cluster of eight have more than
  // one tile. So each thread block has at least 32 keys, tiles for two warps.
  constexpr int kHalfSize = kMaxClusterSize / 2;
  const bool leaves_room = num_heads * kMaxClusterSize <= where.num_sms / 4;
  const bool is_long = longest > (leaves_room ? kHalfSize * kWarps * kDecodeKeys : 2048);
  int size = fitting(std::min(is_long ? kMaxClusterSize : kHalfSize, where.most_in_cluster),
                     where.num_sms);
  if (size < 2) size = fitting(2, 2 * where.num_sms);
  // With more tokens than small_gemm() computes, the GEMM of q, k and v rotates too if
  // decode_attention() is used. This is faster if each of that kernel's thread blocks, two for each
  // multiprocessor, has about one head, and slower if many of them share a head.
  const bool has_whole_heads =
      10 * (num_seqs - num_padding) * layout.num_kv_heads > 9 * 2 * where.num_sms;
  if (size == 0 || (size == 1 && has_whole_heads && num_seqs > kFewTokens)) return 0;
  // decode_attention() gives all thread blocks equal ranges, which is faster if there is much to
  // copy, but its merge through global memory takes as long as copying 256 keys.
  constexpr int64_t kMuchToCopy = 1024, kMergeKeys = 256;
  const int64_t mean = num_keys * layout.num_kv_heads / where.num_sms;  // keys of a multiprocessor
  return mean <= kMuchToCopy && longest / size <= mean + kMergeKeys ? size : 0;
}

void rope_decode_attention(Launch where, RopeDecodeParams params, DType dtype, int cluster_size) {
  const AttentionParams& p = params.attention;
  const bool is_power = cluster_size > 0 && (cluster_size & (cluster_size - 1)) == 0;
  check_args(p.layout.tiled && p.num_heads <= kMaxGroup * p.layout.num_kv_heads && is_power &&
                 cluster_size <= kMaxClusterSize,
             "rope_decode_attention: needs a tiled cache, up to 16 query heads for a KV head and a "
             "cluster of 1, 2, 4, 8 or 16");
  params.prefetch_keys = params.prefetch_keys && where.overlaps;
  with_tiled_type<128>(dtype, p.layout.head_dim, [&](auto type, auto head_dim) {
    using T = decltype(type);
    with_cache_type<T>(p.layout, [&](auto element) {
      using C = decltype(element);
      if (p.num_heads <= 8 * p.layout.num_kv_heads)
        run<T, C, head_dim(), 1>(where, params, cluster_size);
      else run<T, C, head_dim(), 2>(where, params, cluster_size);
    });
  });
}

}  // namespace nanovllm::cuda
