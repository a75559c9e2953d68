#include <algorithm>

#include "nanovllm/ops/cuda/attention/attention.h"
#include "nanovllm/ops/cuda/attention/decode_heads.cuh"

// Decode attention of few sequences on Hopper, where the chain of waits is longer than the copies:
// norm, rotation and store of the newest key are part of it. Each KV head of each sequence is a
// cluster of blocks that share its keys; they fetch the old ones while the kernel before still
// runs, and merge their sums through each other's shared memory.
namespace nanovllm::cuda {
namespace {

constexpr int kWarps = 4, kThreads = kWarps * 32;
constexpr int kMaxGroup = 8, kMaxParts = 16;

// -- shared memory

/// What a block keeps, behind its warps' rings; sizes in bytes.
template <class T, int kHeadDim>
struct Layout {
  static constexpr int kWidth = DecodeHeads<T, kHeadDim, 1>::kWidth;
  static constexpr int kQueryPitch = kHeadDim + 8;  // without bank conflicts
  static constexpr int kRings = kWarps * kDecodeStages<kHeadDim> * kDecodeStageBytes<kHeadDim>;
  static constexpr int kQueries = kRings;  // [kMaxGroup, kQueryPitch]
  static constexpr int kNewest = kQueries + kMaxGroup * kQueryPitch * 2;  // K, then V
  static constexpr int kShares = kNewest + 2 * kHeadDim * 2;  // [parts, group] maximum, total
  static constexpr int kSlices = kShares + kMaxParts * kMaxGroup * 8;  // [parts, slice] values
  /// Behind them [warps, group, kWidth].
  static int bytes(int group) {
    return kSlices + group * kHeadDim * 4 + kWarps * group * kWidth * 4;
  }
};

// -- kernel

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
/// Element by element, so that both stay in registers.
template <int N>
__device__ Vec<float, N> choose(bool first, const Vec<float, N>& a, const Vec<float, N>& b) {
  Vec<float, N> chosen;
#pragma unroll
  for (int i = 0; i < N; ++i) chosen.x[i] = first ? a.x[i] : b.x[i];
  return chosen;
}

/// Of one head of q, k or v: what a lane has of both halves.
template <class T, int kPer>
struct HeadPart {
  Vec<T, kPer> a, b;
  __device__ void read(const T* head, int half, int at) {
    a = load<kPer>(head + at);
    b = load<kPer>(head + half + at);
  }
  /// Norm (if any) and rotation.
  __device__ void rotate(bool has_norm, const Vec<float, kPer>& norm_a,
                         const Vec<float, kPer>& norm_b, float eps, const Vec<float, kPer>& cos,
                         const Vec<float, kPer>& sin) {
    float squares = 0;
#pragma unroll
    for (int i = 0; i < kPer; ++i) {
      const float u = to_float(a.x[i]), v = to_float(b.x[i]);
      squares += u * u + v * v;
    }
    const float scale = has_norm ? rsqrtf(warp_sum(squares) / (64.0f * kPer) + eps) : 1.0f;
#pragma unroll
    for (int i = 0; i < kPer; ++i) {
      float u = to_float(a.x[i]), v = to_float(b.x[i]);
      if (has_norm) {
        u *= scale * norm_a.x[i];
        v *= scale * norm_b.x[i];
      }
      a.x[i] = from_float<T>(u * cos.x[i] - v * sin.x[i]);
      b.x[i] = from_float<T>(v * cos.x[i] + u * sin.x[i]);
    }
  }
};
#endif

/// Grid: sequences, KV heads, parts; the parts are a cluster.
template <class T, int kHeadDim>
__global__ void __launch_bounds__(kThreads) decode_cluster_kernel(const RopedDecodeParams r) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  using Heads = DecodeHeads<T, kHeadDim, 1>;
  using Shared = Layout<T, kHeadDim>;
  constexpr int kStages = kDecodeStages<kHeadDim>, kHalf = kDecodeStageBytes<kHeadDim> / 2;
  constexpr int kPer = kHeadDim / 64, kHalfDim = kHeadDim / 2;
  extern __shared__ __align__(1024) unsigned char shared[];
  __shared__ uint64_t barriers[kWarps][kStages];
  const AttentionParams& p = r.attention;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int num_kv_heads = p.layout.num_kv_heads, group = p.num_heads / num_kv_heads;
  const int num_parts = hopper::cluster_size(), part = hopper::cluster_rank();
  const int item = blockIdx.x / num_parts, seq = item / num_kv_heads, head = item % num_kv_heads;
  if (!r.old_keys) begin_kernel();

  // What the step brought is older than the kernel before.
  const int context = p.context_lens[seq];
  if (context == 0) return;  // the whole cluster does
  hopper::cluster_arrive();
  const int num_tiles = (context + kDecodeKeys - 1) / kDecodeKeys;
  const int first = num_tiles * part / num_parts, end = num_tiles * (part + 1) / num_parts;
  const bool has_newest = part == num_parts - 1;
  const int32_t* const table = p.block_tables + int64_t{p.seq_slots[seq]} * p.max_blocks;
  const uint32_t ring = shared_address(shared) + warp * kStages * kDecodeStageBytes<kHeadDim>;
  const uint32_t full = shared_address(&barriers[warp][0]);
  if (lane < kStages) hopper::barrier_init(full + lane * 8, 1);
  hopper::fence_barrier_init();
  __syncwarp();

  // A lane keeps the block of one of the warp's next 32 tiles, and of the 32 behind them.
  const auto find_block = [&](int n) {
    const int tile = first + warp + n * kWarps;
    return tile < end ? table[tile * kDecodeKeys / p.layout.block_size] : 0;
  };
  int blocks = find_block(lane), blocks_ahead = find_block(32 + lane);
  const auto fetch = [&](int n) {
    const int tile = first + warp + n * kWarps;
    if (tile >= end) return;
    if (n > 0 && n % 32 == 0) {
      blocks = blocks_ahead;
      blocks_ahead = find_block(n + 32 + lane);
    }
    const int block = __shfl_sync(0xffffffff, blocks, n % 32);
    if (lane != 0) return;
    const int64_t from =
        p.layout.entry(block, head) + tile * kDecodeKeys % p.layout.block_size * kHeadDim;
    const uint32_t to = ring + n % kStages * kDecodeStageBytes<kHeadDim>;
    const uint32_t barrier = full + n % kStages * 8;
    hopper::barrier_arrive_expect(barrier, 2 * kHalf);
    hopper::bulk_copy(to, static_cast<const T*>(p.k) + from, kHalf, barrier);
    hopper::bulk_copy(to + kHalf, static_cast<const T*>(p.v) + from, kHalf, barrier);
  };
#pragma unroll
  for (int n = 0; n < kStages; ++n) fetch(n);

  const int at = lane * kPer;
  const int64_t angle = int64_t{context - 1} * kHalfDim + at;
  const Vec<float, kPer> cos = load<kPer>(r.cos + angle), sin = load<kPer>(r.sin + angle);
  Vec<float, kPer> q_norm_a, q_norm_b, k_norm_a, k_norm_b;
  if (r.q_norm != nullptr) {
    q_norm_a = load<kPer>(r.q_norm + at);
    q_norm_b = load<kPer>(r.q_norm + kHalfDim + at);
    k_norm_a = load<kPer>(r.k_norm + at);
    k_norm_b = load<kPer>(r.k_norm + kHalfDim + at);
  }
  const int slot = r.slot_mapping[seq];
  T* const queries = reinterpret_cast<T*>(shared + Shared::kQueries);
  for (int i = threadIdx.x + group * Shared::kQueryPitch; i < kMaxGroup * Shared::kQueryPitch;
       i += kThreads)
    queries[i] = from_float<T>(0);
  if (r.old_keys) begin_kernel();

  // The group's heads of q, and in one block the newest k and v.
  T* const newest = reinterpret_cast<T*>(shared + Shared::kNewest);
  {
    constexpr int kMaxHeads = (kMaxGroup + 2 + kWarps - 1) / kWarps;  // of a warp
    const T* const token =
        static_cast<const T*>(p.qkv) + int64_t{seq} * (p.num_heads + 2 * num_kv_heads) * kHeadDim;
    const int num_heads = group + (has_newest ? 2 : 0);
    HeadPart<T, kPer> parts[kMaxHeads];
#pragma unroll
    for (int i = 0; i < kMaxHeads; ++i) {
      const int h = warp + i * kWarps;
      if (h >= num_heads) break;
      const int row =
          h < group ? head * group + h : p.num_heads + (h - group) * num_kv_heads + head;
      parts[i].read(token + row * kHeadDim, kHalfDim, at);
    }
#pragma unroll
    for (int i = 0; i < kMaxHeads; ++i) {
      const int h = warp + i * kWarps;
      if (h >= num_heads) break;
      const bool is_q = h<group, is_v = h> group;
      if (!is_v)
        parts[i].rotate(r.q_norm != nullptr, choose(is_q, q_norm_a, k_norm_a),
                        choose(is_q, q_norm_b, k_norm_b), r.eps, cos, sin);
      T* const to = is_q ? queries + h * Shared::kQueryPitch : newest + (is_v ? kHeadDim : 0);
      store<kPer>(to + at, parts[i].a);
      store<kPer>(to + kHalfDim + at, parts[i].b);
      if (is_q || slot < 0) continue;
      T* const cache =
          static_cast<T*>(is_v ? p.v : p.k) + p.layout.entry(slot / p.layout.block_size, head);
      const int key = slot % p.layout.block_size;
      store<kPer>(cache + p.layout.at(key, at), parts[i].a);
      store<kPer>(cache + p.layout.at(key, kHalfDim + at), parts[i].b);
    }
  }
  __syncthreads();

  Heads heads;
#pragma unroll
  for (int i = 0; i < kHeadDim / 16; i += 2) {
    uint32_t q[4];
    ldmatrix_x4(q,
                shared_address(queries + lane % 8 * Shared::kQueryPitch + i * 16 + lane / 8 * 8));
#pragma unroll
    for (int j = 0; j < 4; ++j) heads.q[2 * i + j][0] = q[j];
  }
  const float scale = p.scale * 1.44269504f;  // powers of two
  for (int n = 0, tile = first + warp; tile < end; ++n, tile += kWarps) {
    const uint32_t k = ring + n % kStages * kDecodeStageBytes<kHeadDim>;
    hopper::barrier_wait(full + n % kStages * 8, n / kStages % 2);
    if (tile == num_tiles - 1) {
      // The copy came before the newest key.
      constexpr int kChunks = kHeadDim / 8;
      unsigned char* const stage = shared + (k - shared_address(shared));
      for (int c = lane; c < 2 * kChunks; c += 32)
        store<8>(reinterpret_cast<T*>(stage + c / kChunks * kHalf) +
                     p.layout.at((context - 1) % kDecodeKeys, c % kChunks * 8),
                 load<8>(newest + c * 8));
      __syncwarp();
    }
    heads.add(k, k + kHalf, context - tile * kDecodeKeys, scale);
    __syncwarp();
    fetch(n + kStages);
  }

  // Over the warps; each block of the cluster then merges a slice of the elements.
  const int slice = group * kHeadDim / num_parts;
  float* const slices = reinterpret_cast<float*>(shared + Shared::kSlices);
  float* const merged = slices + group * kHeadDim;
  float2* const shares = reinterpret_cast<float2*>(shared + Shared::kShares);
  heads.save(merged + warp * group * Heads::kWidth, group);
  __syncthreads();
  hopper::cluster_wait();  // all blocks of the cluster have begun
  for (int i = threadIdx.x; i < group * kHeadDim; i += kThreads) {
    const int row = i / kHeadDim, d = i % kHeadDim;
    const DecodePart mine =
        merge_parts<kWarps>(merged + row * Heads::kWidth, group * Heads::kWidth, d, kHeadDim);
    hopper::remote_store(slices + part * slice + i % slice, i / slice, mine.value);
    if (d >= num_parts) continue;
    float2* const share = shares + part * group + row;
    hopper::remote_store(&share->x, d, mine.max);
    hopper::remote_store(&share->y, d, mine.total);
  }
  hopper::cluster_arrive();
  hopper::cluster_wait();
  T* const out = static_cast<T*>(p.out) + (int64_t{seq} * p.num_heads + head * group) * kHeadDim;
  for (int i = threadIdx.x; i < slice; i += kThreads) {
    const int element = part * slice + i, row = element / kHeadDim;
    float max = -INFINITY, total = 0, value = 0;
    float2 share[kMaxParts];
    float values[kMaxParts];
#pragma unroll
    for (int j = 0; j < kMaxParts; ++j) {
      const bool there = j < num_parts;
      share[j] = there ? shares[j * group + row] : make_float2(-INFINITY, 0);
      values[j] = there ? slices[j * slice + i] : 0;
      max = fmaxf(max, share[j].x);
    }
#pragma unroll
    for (int j = 0; j < kMaxParts; ++j) {
      const float weight = exp2f(share[j].x - max);
      total += share[j].y * weight;
      value += values[j] * weight;
    }
    out[element] = from_float<T>(value / total);
  }
#endif
}

// -- launcher

template <class T, int kHeadDim>
void run(Launch where, const RopedDecodeParams& params, int num_parts) {
  const AttentionParams& p = params.attention;
  const int bytes = Layout<T, kHeadDim>::bytes(p.num_heads / p.layout.num_kv_heads);
  constexpr auto kernel = decode_cluster_kernel<T, kHeadDim>;
  allow_shared_memory<kernel>();
  cuda_check(cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1),
             "decode attention");
  launch(ClusterLaunch{where, num_parts}, kernel,
         dim3(static_cast<unsigned>(p.num_seqs * p.layout.num_kv_heads * num_parts)), kThreads,
         static_cast<size_t>(bytes), params);
}

}  // namespace

int decode_cluster_size(Launch where, const KvLayout& layout, int num_seqs, int64_t num_keys,
                        int64_t longest) {
  if (!layout.tiled || layout.head_dim > 128) return 0;
  // A block for each multiprocessor, so that the next kernel's fit beside it; two where that would
  // leave a head's keys to one block.
  const auto fitting = [&](int most, int room) {
    while (most > 0 && num_seqs * layout.num_kv_heads * most > room) most /= 2;
    return most;
  };
  int parts = fitting(longest > 2048 ? kMaxParts : kMaxParts / 2, where.num_sms);
  if (parts < 2) parts = fitting(2, 2 * where.num_sms);
  if (parts == 0) return 0;
  // Equal pieces for all blocks copy better, which pays where there is much to copy; what merging
  // them through memory costs is 256 keys' time.
  const int64_t mean = num_keys * layout.num_kv_heads / where.num_sms;  // of a multiprocessor
  return mean <= 1024 && longest / parts <= mean + 256 ? parts : 0;
}

void roped_decode_attention(Launch where, RopedDecodeParams params, DType dtype, int num_parts) {
  check_args(params.attention.num_heads <= kMaxGroup * params.attention.layout.num_kv_heads,
             "decode attention: a group of heads that it does not serve");
  params.old_keys = params.old_keys && where.overlaps;
  const auto with_type = [&]<class T>() {
    if (params.attention.layout.head_dim == 64) run<T, 64>(where, params, num_parts);
    else run<T, 128>(where, params, num_parts);
  };
  if (dtype == DType::kBF16) with_type.template operator()<Bf16>();
  else with_type.template operator()<F16>();
}

}  // namespace nanovllm::cuda
