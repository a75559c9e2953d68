#include "nanovllm/ops/cuda/attention/decode_copies.cuh"
#include "nanovllm/ops/cuda/attention/decode_heads.cuh"

// Decode attention: one query token a sequence against its paged keys, which must stream through
// once. Each block takes a piece of the step's tiles (DecodePlan), each of its warps 16 keys of
// every tile with an online softmax of its own; the query heads that share a KV head are the
// columns of the tensor cores' products. The copies run ahead through a ring; on Hopper they are
// one more warp's only job, for a copy waits where it is issued while others are under way. A
// head's pieces are merged over the warps, then over the blocks by the one that ends last, always
// in the order of the keys. Source of the split over keys: Dao et al., "Flash-Decoding for
// long-context inference", 2023; of equal pieces: Osama et al., "Stream-K", 2023.
#pragma nv_diag_suppress 177  // of targets other than Hopper: what only its kernel uses
namespace nanovllm::cuda {
using namespace decode;
namespace {

// -- kernel

/// Floats for each query head: the warps' sums; afterwards the block's, and the shares of up to
/// num_blocks parts.
template <int kHeadDim>
__host__ __device__ constexpr int merged_width(int num_blocks) {
  constexpr int kWidth = kHeadDim + 2;
  return (kWarps - 1) * kWidth > num_blocks ? kWarps * kWidth : kWidth + num_blocks;
}

/// What else a block has in shared memory, between the ring and the sums. Static variables would
/// cost a whole kilobyte, the ring's alignment, and so a block on each multiprocessor.
template <int kStages>
struct alignas(16) Control {
  uint64_t barriers[2][kStages];
  float own_max[16], own_total[16];  // of the block's part
  int is_last;
};

/// kEights: query heads of a KV head, in eights.
template <class T, int kHeadDim, bool kBulk, int kEights>
__global__ void __launch_bounds__(kThreads + (kBulk ? 32 : 0))
    decode_kernel(const AttentionParams p, const DecodePlan plan, const DecodeScratch scratch,
                  bool old_keys) {
  constexpr int kStages = kRingStages<kHeadDim, kBulk>, kHalf = kDecodeStageBytes<kHeadDim> / 2;
  constexpr int kWidth = DecodeHeads<T, kHeadDim, kEights>::kWidth;
  extern __shared__ __align__(1024) unsigned char shared[];
  auto& control =
      *reinterpret_cast<Control<kStages>*>(shared + kWarps * kStages * kDecodeStageBytes<kHeadDim>);
  float* const merged = reinterpret_cast<float*>(&control + 1);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int num_kv_heads = p.layout.num_kv_heads, group = p.num_heads / num_kv_heads;
  const auto sync = [] { hopper::named_barrier_sync(1, kThreads); };
  const TileRing<kHeadDim> ring = {shared_address(shared), shared_address(&control.barriers)};
  if constexpr (kBulk) {
    if (threadIdx.x == kThreads) ring.init();
    __syncthreads();
  }
  if (!old_keys) begin_kernel();

  // The plan is older than the kernel before.
  const DecodeStart start = plan.starts[blockIdx.x];
  const int begin = start.position, end = plan.starts[blockIdx.x + 1].position;
  if (begin >= end) return;
  const DecodeSplits cuts = *plan.cuts;
  Cursor at(start, cuts);
  if constexpr (kBulk) {
    if (warp == kWarps)
      return copy_tiles<T, kHeadDim>(p, plan, at, start.block, end - begin, ring, old_keys);
  }
  Loader<T, kHeadDim> loader{.at = at,
                             .remaining = end - begin,
                             .ring = ring.stages + warp * kStages * kDecodeStageBytes<kHeadDim>};
  hopper::RingCursor<kStages> place;
  if constexpr (!kBulk) {
    loader.seek(p, plan);
    for (int i = 0; i < kStages; ++i) loader.issue(p, plan);
  }
  if (old_keys) begin_kernel();

  const float scale = p.scale * 1.44269504f;  // powers of two
  for (int position = begin; position < end;) {
    const int first_tile = at.tile, seq = at.seq, head = at.head, context = at.context;
    const int num_tiles = min(at.num_tiles - at.tile, end - position);
    const int64_t token = at.token;
    DecodeHeads<T, kHeadDim, kEights> heads;
    const T* const queries = static_cast<const T*>(p.qkv) +
                             token * (p.num_heads + 2 * num_kv_heads) * kHeadDim +
                             (head * group + lane / 4) * kHeadDim + 2 * (lane % 4);
#pragma unroll
    for (int e = 0; e < kEights; ++e) {
      const bool there = e * 8 + lane / 4 < group;
#pragma unroll
      for (int i = 0; i < kHeadDim / 8; ++i)
        heads.q[i][e] =
            there ? *reinterpret_cast<const uint32_t*>(queries + e * 8 * kHeadDim + i * 8) : 0u;
    }
    const int last_tile = min(first_tile + num_tiles, num_decode_tiles(context));
    for (int tile = first_tile; tile < last_tile; ++tile) {
      const int num_keys = context - tile * kDecodeTile - warp * kDecodeKeys;
      if constexpr (kBulk) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
        const uint32_t k = ring.stage(place.stage) + warp * kHalf;
        hopper::barrier_wait(ring.full(place.stage), place.parity);
        if (num_keys > 0) heads.add(k, k + ring.kHalf, num_keys, scale);
        hopper::barrier_arrive(ring.empty(place.stage));  // each: racecheck follows no __syncwarp()
        place.advance();
#endif
      } else if (num_keys > 0) {
        const uint32_t k = loader.ring + place.stage * kDecodeStageBytes<kHeadDim>;
        wait_copies<kStages - 1>();
        __syncwarp();
        heads.add(k, k + kHalf, num_keys, scale);
        __syncwarp();
        loader.issue(p, plan);
        place.advance();
      }
    }

    const bool whole = num_tiles == at.num_tiles;
    const int first_block = whole ? 0 : cuts.first_block(position - first_tile);
    const int last_block = whole ? 0 : cuts.last_block(position - first_tile, at.num_tiles);
    int32_t* const counter = scratch.counters + seq * num_kv_heads + head;
    int num_there = 0;
    if (!whole && threadIdx.x == 0) num_there = load_acquire(counter);

    // Over the warps.
    heads.save(merged + warp * group * kWidth, group);
    if (threadIdx.x == 0) control.is_last = num_there == last_block - first_block;
    sync();
    bool last = !whole && control.is_last;
    T* const out = static_cast<T*>(p.out) + (token * p.num_heads + head * group) * kHeadDim;
    const int slot = 2 * blockIdx.x + (first_tile == 0 ? 1 : 0);
    float* const partial = scratch.partial + int64_t{slot} * 16 * kWidth;
    for (int i = threadIdx.x; i < group * kHeadDim; i += kThreads) {
      const int row = i / kHeadDim, d = i % kHeadDim;
      const DecodePart all =
          merge_parts<kWarps>(merged + row * kWidth, group * kWidth, d, kHeadDim);
      if (whole) {
        out[row * kHeadDim + d] = from_float<T>(all.value / all.total);
        continue;
      }
      merged[row * kWidth + d] = all.value;  // where nobody else reads
      if (!last) partial[row * kWidth + d] = all.value;
      if (d > 0) continue;
      control.own_max[row] = all.max;
      control.own_total[row] = all.total;
      if (last) continue;
      partial[row * kWidth + kHeadDim] = all.max;
      partial[row * kWidth + kHeadDim + 1] = all.total;
    }
    // Over the blocks: whoever comes last has all the parts, and mostly knew before that it would
    // be: then its own need not go round by the memory.
    if (!whole && !last) {
      __threadfence();
      sync();
      if (threadIdx.x == 0) control.is_last = atomicAdd(counter, 1) == last_block - first_block;
      sync();
      last = control.is_last;
    }
    if (last) {
      __threadfence();
      sync();
      if (threadIdx.x == 0) *counter = 0;
      const int num_parts = last_block - first_block + 1;
      const int own = static_cast<int>(blockIdx.x) - first_block;
      const auto other = [&](int i, int at_part) {
        const int from = 2 * (first_block + i) + (i == 0 ? 1 : 0);
        return __ldcg(scratch.partial + int64_t{from} * 16 * kWidth + at_part);
      };
      const auto max_of = [&](int i, int row) {
        return i == own ? control.own_max[row] : other(i, row * kWidth + kHeadDim);
      };
      const auto total_of = [&](int i, int row) {
        return i == own ? control.own_total[row] : other(i, row * kWidth + kHeadDim + 1);
      };
      const auto value_of = [&](int i, int row, int d) {
        return i == own ? merged[row * kWidth + d] : other(i, row * kWidth + d);
      };
      constexpr int kFew = 4;
      if (num_parts <= kFew) {  // all of them at once
        for (int i = threadIdx.x; i < group * kHeadDim; i += kThreads) {
          const int row = i / kHeadDim, d = i % kHeadDim;
          float max[kFew], total[kFew], value[kFew];
#pragma unroll
          for (int b = 0; b < kFew; ++b) {
            const bool there = b < num_parts;
            max[b] = there ? max_of(b, row) : -INFINITY;
            total[b] = there ? total_of(b, row) : 0;
            value[b] = there ? value_of(b, row, d) : 0;
          }
          float m = max[0], all_total = 0, all_value = 0;
#pragma unroll
          for (int b = 1; b < kFew; ++b) m = fmaxf(m, max[b]);
#pragma unroll
          for (int b = 0; b < kFew; ++b) {
            const float share = exp2f(max[b] - m);
            all_total += total[b] * share;
            all_value += value[b] * share;
          }
          out[i] = from_float<T>(all_value / all_total);
        }
      } else {
        float* const shares = merged + group * kWidth;  // [group, num_parts]
        for (int row = warp; row < group; row += kWarps) {
          float m = -INFINITY, total = 0;
          for (int i = lane; i < num_parts; i += 32) m = fmaxf(m, max_of(i, row));
          m = warp_max(m);
          for (int i = lane; i < num_parts; i += 32) {
            const float share = exp2f(max_of(i, row) - m);
            total += total_of(i, row) * share;
            shares[row * num_parts + i] = share;
          }
          total = warp_sum(total);
          for (int i = lane; i < num_parts; i += 32) shares[row * num_parts + i] /= total;
        }
        sync();
        for (int i = threadIdx.x; i < group * kHeadDim; i += kThreads) {
          const int row = i / kHeadDim, d = i % kHeadDim;
          float value = 0;
#pragma unroll 8
          for (int b = 0; b < num_parts; ++b)
            value += shares[row * num_parts + b] * value_of(b, row, d);
          out[i] = from_float<T>(value);
        }
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

template <class T, int kHeadDim, bool kBulk, int kEights>
void run(Launch where, const AttentionParams& params, const DecodePlan& plan,
         const DecodeScratch& scratch, bool old_keys) {
  const int group = params.num_heads / params.layout.num_kv_heads;
  const size_t bytes =
      kWarps * kRingStages<kHeadDim, kBulk> * kDecodeStageBytes<kHeadDim> +
      sizeof(Control<kRingStages<kHeadDim, kBulk>>) +
      static_cast<size_t>(group * merged_width<kHeadDim>(plan.num_blocks)) * sizeof(float);
  constexpr auto kernel = decode_kernel<T, kHeadDim, kBulk, kEights>;
  allow_shared_memory<kernel>();
  launch(where, kernel, dim3(static_cast<unsigned>(plan.num_blocks)), kThreads + (kBulk ? 32 : 0),
         bytes, params, plan, scratch, kBulk && old_keys && where.overlaps);
}

}  // namespace

int64_t decode_partial_size(int num_blocks, int head_dim) {
  return int64_t{2} * num_blocks * 16 * (head_dim + 2);
}

void decode_attention(Launch where, const AttentionParams& params, const DecodePlan& plan,
                      const DecodeScratch& scratch, DType dtype, DecodeOptions options) {
  check_args(params.layout.tiled && params.num_heads <= 16 * params.layout.num_kv_heads,
             "decode attention: a layout or a group of heads that it does not serve");
  const bool is_few = params.num_heads <= 8 * params.layout.num_kv_heads;
  const auto with_eights = [&]<class T, int kHeadDim, bool kBulk>() {
    if (is_few) return run<T, kHeadDim, kBulk, 1>(where, params, plan, scratch, options.old_keys);
    if constexpr (kBulk || kHeadDim < 256)
      return run<T, kHeadDim, kBulk, 2>(where, params, plan, scratch, options.old_keys);
    check_args(false,
               "decode attention: a group of heads that the portable kernel has no room for");
  };
  const auto with = [&]<class T, int kHeadDim>() {
    if (options.portable) with_eights.template operator()<T, kHeadDim, false>();
    else with_eights.template operator()<T, kHeadDim, true>();
  };
  const auto with_type = [&]<class T>() {
    if (params.layout.head_dim == 64) with.template operator()<T, 64>();
    else if (params.layout.head_dim == 128) with.template operator()<T, 128>();
    else with.template operator()<T, 256>();
  };
  if (dtype == DType::kBF16) with_type.template operator()<Bf16>();
  else with_type.template operator()<F16>();
}

}  // namespace nanovllm::cuda
