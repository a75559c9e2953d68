#include "nanovllm/ops/cuda/attention/decode/decode_copies.cuh"
#include "nanovllm/ops/cuda/attention/dispatch.cuh"

//   out[h] = sum_j softmax(scale q[h] . k[j]) v[j]
// for each query head h of the one new token of each sequence (decode). Memory bandwidth bounds it:
// keys and values are read once, for all query heads of a KV head together. Each thread block
// computes a range of the step's tiles of 64 keys (DecodePlan); each of its four warps computes 16
// keys of every tile with its own online softmax. Keys and values are prefetched into a ring in
// shared memory. On Hopper a fifth warp issues these as bulk copies, because the thread that issues
// a bulk copy waits until earlier ones have been started. If several thread blocks compute parts of
// a head, the one that finishes last merges their partial results, always in the order of the keys,
// so that the result does not depend on timing. Sources: Dao et al., "Flash-Decoding for
// long-context inference", 2023, for the split over keys; Osama et al., "Stream-K", 2023, for equal
// ranges.
#pragma nv_diag_suppress 177  // some constants are only used by the code for Hopper
namespace nanovllm::cuda {
using namespace decode;
namespace {

// -- layout of shared memory: the ring, Control, then float[group * merged_width()]

/// Floats for each query head: first the warps' partial results; later the thread block's own
/// partial result and the weights of up to `num_blocks` partial results.
template <int kHeadDim>
__host__ __device__ constexpr int merged_width(int num_blocks) {
  constexpr int kPitch = kHeadDim + 4;
  return (kWarps - 1) * kPitch > num_blocks ? kWarps * kPitch : kPitch + num_blocks;
}

/// Barriers and small variables. They are in the dynamic shared memory, because static variables
/// would take a whole kilobyte, due to the ring's alignment, and then one thread block less would
/// fit on a multiprocessor.
template <int kStages>
struct alignas(16) Control {
  uint64_t barriers[2][kStages];
  // The maximum score and the sum of weights in the keys that this thread block has of a head.
  float own_max[kMaxGroup], own_total[kMaxGroup];
  int is_last;
};

// -- kernel

/// C: the type of the cache's elements. kHeadTiles: the query heads of a KV head, in tiles of
/// eight.
template <class T, class C, int kHeadDim, bool kBulk, int kHeadTiles>
__global__ void __launch_bounds__(kThreads + (kBulk ? 32 : 0))
    decode_kernel(const AttentionParams p, const DecodePlan plan, const DecodeScratch scratch,
                  bool prefetch_keys) {
  constexpr int kStages = kRingStages<C, kHeadDim, kBulk>;
  constexpr int kStageBytes = kDecodeStageBytes<C, kHeadDim>, kHalf = kStageBytes / 2;
  constexpr int kPitch = DecodeHeads<T, C, kHeadDim, kHeadTiles>::kPitch;
  extern __shared__ __align__(1024) unsigned char shared[];
  auto& control = *reinterpret_cast<Control<kStages>*>(shared + kWarps * kStages * kStageBytes);
  float* const merged = reinterpret_cast<float*>(&control + 1);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int num_kv_heads = p.layout.num_kv_heads, group = p.num_heads / num_kv_heads;
  // A barrier of all warps but the one that copies.
  const auto sync = [] { named_barrier_sync(1, kThreads); };
  const TileRing<C, kHeadDim> ring = {shared_address(shared), shared_address(&control.barriers)};
  if constexpr (kBulk) {
    if (threadIdx.x == kThreads) ring.init();
    __syncthreads();
  }
  if (!prefetch_keys) begin_kernel();

  // The plan was written before the previous kernel began, so it can be read without waiting.
  const DecodeStart start = plan.starts[blockIdx.x];
  const int begin = start.position, end = plan.starts[blockIdx.x + 1].position;
  if (begin >= end) return;
  const DecodeSplits splits = *plan.splits;
  Cursor at(start, splits);
  if constexpr (kBulk) {
    if (warp == kWarps)
      return copy_tiles<C, kHeadDim>(p, plan, at, start.block, end - begin, ring, prefetch_keys);
  }
  WarpCopies<C, kHeadDim> copies{
      .at = at, .remaining = end - begin, .ring = ring.stages + warp * kStages * kStageBytes};
  RingCursor<kStages> place;
  if constexpr (!kBulk) {
    copies.seek(p, plan);
    for (int i = 0; i < kStages; ++i) copies.issue(p, plan);
  }
  if (prefetch_keys) begin_kernel();

  const float scale = p.scale * kLog2e;
  for (int position = begin; position < end;) {  // one iteration for each head of the range
    const int first_tile = at.tile, seq = at.seq, head = at.head, context = at.context;
    const int num_tiles = min(at.num_tiles - at.tile, end - position);
    const int64_t token = at.token;
    DecodeHeads<T, C, kHeadDim, kHeadTiles> heads;
    heads.load_queries(static_cast<const T*>(p.qkv) +
                           token * (p.num_heads + 2 * num_kv_heads) * kHeadDim +
                           head * group * kHeadDim,
                       kHeadDim, group, scale);
    const int last_tile = min(first_tile + num_tiles, num_decode_tiles(context));
    for (int tile = first_tile; tile < last_tile; ++tile) {
      const int num_keys = context - tile * kDecodeTile - warp * kDecodeKeys;
      if constexpr (kBulk) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
        const uint32_t k = ring.stage(place.stage) + warp * kHalf;
        barrier_wait(ring.full(place.stage), place.parity);
        if (num_keys > 0) heads.add(k, k + ring.kHalf, num_keys, scale);
        // Every thread arrives: compute-sanitizer's racecheck does not follow __syncwarp().
        barrier_arrive(ring.empty(place.stage));
        place.advance();
#endif
      } else if (num_keys > 0) {
        const uint32_t k = copies.ring + place.stage * kStageBytes;
        wait_async_copies<kStages - 1>();
        __syncwarp();
        heads.add(k, k + kHalf, num_keys, scale);
        __syncwarp();
        copies.issue(p, plan);
        place.advance();
      }
    }

    // If this head is split, thread blocks first_block to last_block compute it.
    const bool is_split = num_tiles != at.num_tiles;
    const int first_block = is_split ? splits.first_block(position - first_tile) : 0;
    const int last_block = is_split ? splits.last_block(position - first_tile, at.num_tiles) : 0;
    int32_t* const counter = scratch.counters + seq * num_kv_heads + head;
    int num_finished = 0;
    if (is_split && threadIdx.x == 0) num_finished = load_acquire(counter);

    // Merge over the warps.
    heads.save(merged + warp * group * kPitch, group);
    if (threadIdx.x == 0) control.is_last = num_finished == last_block - first_block;
    sync();
    bool is_last = is_split && control.is_last;
    const int slot = 2 * blockIdx.x + (first_tile == 0 ? 1 : 0);
    float* const partial = scratch.partial + int64_t{slot} * kMaxGroup * kPitch;
    const auto write = [&](int element, const Vec<float, kMergeWidth>& sums, float factor) {
      float values[kMergeWidth];
#pragma unroll
      for (int i = 0; i < kMergeWidth; ++i) values[i] = sums.x[i] * factor;
      store_output<T>(p, token, head * group * kHeadDim + element, values);
    };
    // Calls use(element, row, d) for this thread's elements of the query heads: d is the first one
    // in the head `row`.
    const auto for_each_element = [&](auto use) {
      for (int element = threadIdx.x * kMergeWidth; element < group * kHeadDim;
           element += kThreads * kMergeWidth)
        use(element, element / kHeadDim, element % kHeadDim);
    };
    for_each_element([&](int element, int row, int d) {
      float* const own = merged + row * kPitch;
      const DecodePart all = merge_parts<kWarps, kHeadDim>(own, group * kPitch, d);
      if (!is_split) return write(element, all.values, 1 / all.total);
      store(own + d, all.values);  // this thread alone reads these
      if (d == 0) control.own_max[row] = all.max, control.own_total[row] = all.total;
      if (is_last) return;
      store(partial + row * kPitch + d, all.values);
      if (d == 0) store(partial + row * kPitch + kHeadDim, Vec<float, 2>{all.max, all.total});
    });
    // Merge over the thread blocks, by the one that finishes last. Usually it already knows that it
    // is the last one, and then its own partial result need not be written to global memory.
    if (is_split && !is_last) {
      __threadfence();
      sync();
      if (threadIdx.x == 0) control.is_last = atomicAdd(counter, 1) == last_block - first_block;
      sync();
      is_last = control.is_last;
    }
    if (is_last) {
      __threadfence();
      sync();
      if (threadIdx.x == 0) *counter = 0;
      const int num_parts = last_block - first_block + 1;
      const int own = static_cast<int>(blockIdx.x) - first_block;
      const auto other = [&](int i, int row) {
        const int from = 2 * (first_block + i) + (i == 0 ? 1 : 0);
        return scratch.partial + (int64_t{from} * kMaxGroup + row) * kPitch;
      };
      // Maximum and sum of weights of part i, and the elements from d on.
      const auto weights_of = [&](int i, int row) {
        return i == own ? float2{control.own_max[row], control.own_total[row]}
                        : __ldcg(reinterpret_cast<const float2*>(other(i, row) + kHeadDim));
      };
      const auto values_of = [&](int i, int row, int d) {
        return i == own ? bits_as<float4>(load<kMergeWidth>(merged + row * kPitch + d))
                        : __ldcg(reinterpret_cast<const float4*>(other(i, row) + d));
      };
      // Up to kFewParts partial results are loaded at once. If there are more, a first pass
      // computes their weights: one sequence of 8,192 keys takes 16.4 us with both paths and 25.6
      // us with only one of them.
      constexpr int kFewParts = 4;
      const auto add = [](Vec<float, kMergeWidth>& sums, const float4& values, float weight) {
        const auto x = bits_as<Vec<float, kMergeWidth>>(values);
#pragma unroll
        for (int i = 0; i < kMergeWidth; ++i) sums.x[i] += x.x[i] * weight;
      };
      if (num_parts <= kFewParts) {
        for_each_element([&](int element, int row, int d) {
          float2 weights[kFewParts];
          float4 values[kFewParts];
          float max = -INFINITY, total = 0;
#pragma unroll
          for (int i = 0; i < kFewParts; ++i) {
            weights[i] = i < num_parts ? weights_of(i, row) : float2{-INFINITY, 0};
            values[i] = i < num_parts ? values_of(i, row, d) : float4{};
          }
#pragma unroll
          for (int i = 0; i < kFewParts; ++i) max = fmaxf(max, weights[i].x);
          Vec<float, kMergeWidth> sums = {};
#pragma unroll
          for (int i = 0; i < kFewParts; ++i) {
            const float weight = exp2f(weights[i].x - max);
            total += weights[i].y * weight;
            add(sums, values[i], weight);
          }
          write(element, sums, 1 / total);
        });
      } else {
        float* const weights = merged + group * kPitch;  // [group, num_parts]
        for (int row = warp; row < group; row += kWarps) {
          float m = -INFINITY, total = 0;
          for (int i = lane; i < num_parts; i += 32) m = fmaxf(m, weights_of(i, row).x);
          m = warp_max(m);
          for (int i = lane; i < num_parts; i += 32) {
            const float2 part = weights_of(i, row);
            const float weight = exp2f(part.x - m);
            total += part.y * weight;
            weights[row * num_parts + i] = weight;
          }
          total = warp_sum(total);
          for (int i = lane; i < num_parts; i += 32) weights[row * num_parts + i] /= total;
        }
        sync();
        for_each_element([&](int element, int row, int d) {
          constexpr int kLoads = 8;  // partial results that are loaded at once
          Vec<float, kMergeWidth> sums = {};
          for (int first = 0; first < num_parts; first += kLoads) {
            float4 values[kLoads];
#pragma unroll
            for (int i = 0; i < kLoads; ++i)
              values[i] = first + i < num_parts ? values_of(first + i, row, d) : float4{};
#pragma unroll
            for (int i = 0; i < kLoads; ++i)
              if (first + i < num_parts) add(sums, values[i], weights[row * num_parts + first + i]);
          }
          write(element, sums, 1);
        });
      }
    }
    sync();
    position += num_tiles;
    if (position < end) {
      at.tile += num_tiles - 1;
      at.advance(p, plan);
    }
  }
}

// -- launcher

template <class T, class C, int kHeadDim, bool kBulk, int kHeadTiles>
void run(Launch where, const AttentionParams& params, const DecodePlan& plan,
         const DecodeScratch& scratch, bool prefetch_keys) {
  const int group = params.num_heads / params.layout.num_kv_heads;
  const size_t bytes =
      kWarps * kRingStages<C, kHeadDim, kBulk> * kDecodeStageBytes<C, kHeadDim> +
      sizeof(Control<kRingStages<C, kHeadDim, kBulk>>) +
      static_cast<size_t>(group * merged_width<kHeadDim>(plan.num_blocks)) * sizeof(float);
  constexpr auto kernel = decode_kernel<T, C, kHeadDim, kBulk, kHeadTiles>;
  allow_shared_memory<kernel>();
  launch(where, kernel, blocks_for(plan.num_blocks), kThreads + (kBulk ? 32 : 0), bytes, params,
         plan, scratch, kBulk && prefetch_keys && where.overlaps);
}

}  // namespace

int64_t decode_partial_size(int num_blocks, int head_dim) {
  return int64_t{2} * num_blocks * kMaxGroup * (head_dim + 4);
}

void decode_attention(Launch where, const AttentionParams& params, const DecodePlan& plan,
                      const DecodeScratch& scratch, DType dtype, DecodeOptions options) {
  const int head_tiles = (params.num_heads / params.layout.num_kv_heads + 7) / 8;
  check_args(
      params.layout.tiled && head_tiles <= 2 &&
          (head_tiles == 1 || !options.portable || params.layout.head_dim < 256),
      "decode_attention: needs a tiled cache and up to 16 query heads for a KV head, up to 8 "
      "if portable with head_dim 256");
  with_tiled_type(dtype, params.layout.head_dim, [&](auto type, auto head_dim) {
    using T = decltype(type);
    const auto with_head_tiles = [&](auto bulk, auto element) {
      constexpr bool kBulk = bulk();
      using C = decltype(element);
      if (head_tiles == 1)
        run<T, C, head_dim(), kBulk, 1>(where, params, plan, scratch, options.prefetch_keys);
      else if constexpr (kBulk || head_dim() < 256)
        run<T, C, head_dim(), kBulk, 2>(where, params, plan, scratch, options.prefetch_keys);
    };
    with_cache_type<T>(params.layout, [&](auto element) {
      if (options.portable) with_head_tiles(std::false_type(), element);
      else with_head_tiles(std::true_type(), element);
    });
  });
}

}  // namespace nanovllm::cuda
