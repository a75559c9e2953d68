#include "nanovllm/ops/cuda/mid_matmul.h"

#include <algorithm>

#include "nanovllm/ops/cuda/device.cuh"
#include "nanovllm/ops/cuda/small_matmul.cuh"
#include "nanovllm/ops/cuda/tensor_map.cuh"
#include "nanovllm/ops/cuda/wgmma.cuh"

// Products of 17 to 64 tokens on Hopper, turned round for the tensor cores: w's rows are M, 64 for
// each warpgroup, and the tokens N. A block takes some rows and a part of k; the blocks of a
// cluster hold the other parts, and send each other the sums of the tokens that are theirs to
// finish, which are added in the order of k. w and x come by the copy engine through one ring, w as
// far as the ring goes before the kernel ahead has ended. With a norm in front, some warps multiply
// x by the norm's weights where it lies; the tokens' scale, a sum over all of k, is applied to the
// product:
//   out = rsqrt(mean(x^2) + eps) * ((x * norm) w^T)
// Where a block's rows are a head of q, k or v, the head's norm, the rotation and the store into
// the cache come with the last addition.
namespace nanovllm::cuda {
namespace {

using namespace hopper;

// -- shapes

/// How a product is cut.
struct Plan {
  SmallMatmul::End end;
  int n, k, max_tokens;
  int rows;    // of w, in a block: a multiple of 32, for a SwiGLU half of them gates
  int split;   // blocks of a cluster that share out k
  int stages;  // of the ring
};

/// What made whole steps faster on an H200: the shapes of Qwen3 0.6B, and of 8B up to 32 tokens,
/// its q, k and v up to 64.
constexpr Plan kPlans[] = {
    {SmallMatmul::End::kStore, 4096, 1024, 32, 64, 4, 4},
    {SmallMatmul::End::kStore, 4096, 1024, 64, 128, 4, 4},
    {SmallMatmul::End::kAdd, 1024, 2048, 32, 32, 4, 8},
    {SmallMatmul::End::kAdd, 1024, 2048, 64, 64, 8, 4},
    {SmallMatmul::End::kSwiglu, 3072, 1024, 32, 128, 4, 3},
    {SmallMatmul::End::kSwiglu, 3072, 1024, 64, 64, 2, 6},
    {SmallMatmul::End::kAdd, 1024, 3072, 64, 64, 8, 6},
    {SmallMatmul::End::kStore, 6144, 4096, 32, 128, 4, 5},
    {SmallMatmul::End::kStore, 6144, 4096, 64, 128, 4, 4},
    {SmallMatmul::End::kAdd, 4096, 4096, 32, 64, 4, 6},
    {SmallMatmul::End::kAdd, 4096, 12288, 32, 64, 4, 6},
};

/// Where two groups norm chunks in turns, a stage is always the same one's: the other could take it
/// for a round behind.
static_assert(std::ranges::all_of(kPlans, [](const Plan& plan) {
  return plan.end == SmallMatmul::End::kAdd || plan.rows > 64 || plan.stages % 2 == 0;
}));

// -- layout

static_assert(kChunk == kBoxColumns);
constexpr int kHeadDim = 128;     // of what finish_head() serves
constexpr int kChunkBytes = 128;  // of a row: the width of the swizzle
constexpr int kNorming = 128;     // threads of a group that norms a chunk
constexpr int kMaxThreads = 128 * 3 + 32;

struct Params {
  CUtensorMap w, x;  // boxes of [rows / 2, kChunk] and [kTokens, kChunk]
  SmallMatmul args;
  int rows, split, stages;
  int num_chunks;            // of a block
  int multiplying, norming;  // threads; those that norm take chunks in turns
  bool early;                // launch the next kernel before this one's turn
  RopeParams rope;           // of q, k and v
};

/// A stage's barriers: w is there, x is there, x is multiplied by the norm, all is used. And two of
/// the block: the cluster's rings are free for sums; all sums are there.
enum Kind { kWThere, kXThere, kXNormed, kUsed, kRingsFree, kSumsThere };

/// What a block has in shared memory, as offsets: the ring, whose place the sums take over (its own
/// of all tokens, [kTokens, pitch], then all blocks' of its tokens, [split, kTokens / split,
/// pitch]), the norm's weights for each stage [stages, kChunk], the barriers.
template <int kTokens>
struct Layout {
  int rows, stages, ring_bytes;
  __host__ __device__ Layout(int rows_, int stages_)
      : rows(rows_), stages(stages_), ring_bytes(max(stages_ * stage_bytes(), 2 * sums_bytes())) {}
  __host__ __device__ int stage_bytes() const { return (rows + kTokens) * kChunkBytes; }
  /// Floats from token to token of the sums: their stores meet no bank twice, and behind them is
  /// room for the token's sum of squares.
  __host__ __device__ int pitch() const { return rows + 4; }
  __host__ __device__ int sums_bytes() const { return kTokens * pitch() * 4; }
  __host__ __device__ int w(int stage) const { return stage * stage_bytes(); }
  __host__ __device__ int x(int stage) const { return w(stage) + rows * kChunkBytes; }
  __host__ __device__ int norm(int stage) const { return ring_bytes + stage * kChunk * 4; }
  __host__ __device__ int barrier(Kind kind, int stage) const {
    const int index =
        kind < kRingsFree ? kind * stages + stage : kRingsFree * stages + kind - kRingsFree;
    return norm(stages) + index * 8;
  }
  __host__ __device__ int bytes() const { return barrier(kSumsThere, 0) + 8; }
};

// -- kernel

/// A block, kTokens being 32 or 64: its last warp copies, those before multiply x by the norm, the
/// others multiply.
template <int kTokens>
struct Block {
  static constexpr int kMaxSplit = 8;
  const Params& p;
  const SmallMatmul& args = p.args;
  const Layout<kTokens> layout{p.rows, p.stages};
  const uint32_t shared;
  const bool swiglu = args.end == SmallMatmul::End::kSwiglu;
  // The block's part of k; its columns of out.
  const int rank = cluster_rank();
  const int columns = swiglu ? p.rows / 2 : p.rows;
  const int first_column = static_cast<int>(blockIdx.x) / p.split * columns;

  __device__ uint32_t barrier(Kind kind, int stage = 0) const {
    return shared + layout.barrier(kind, stage);
  }
  __device__ int first_k(int chunk) const { return (rank * p.num_chunks + chunk) * kChunk; }

  /// Calls body(chunk, stage, parity) for all of the block's chunks.
  template <class Body>
  __device__ void for_chunks(Body body) const {
    int stage = 0;
    uint32_t parity = 0;
    for (int chunk = 0; chunk < p.num_chunks; ++chunk) {
      body(chunk, stage, parity);
      if (++stage == p.stages) stage = 0, parity ^= 1;
    }
  }

  // One lane copies.

  __device__ void begin_copies() const {
    for (int stage = 0; stage < p.stages; ++stage) {
      barrier_init(barrier(kWThere, stage), 1);
      barrier_init(barrier(kXThere, stage), 1);
      barrier_init(barrier(kXNormed, stage), kNorming / 32);
      barrier_init(barrier(kUsed, stage), p.multiplying / 32);
    }
    barrier_init(barrier(kRingsFree), p.split);
    barrier_init(barrier(kSumsThere), 1);
    fence_barrier_init();
    for (int chunk = 0; chunk < min(p.stages, p.num_chunks); ++chunk) fetch_w(chunk, chunk);
    prefetch_map(p.x);
    barrier_arrive_expect(barrier(kSumsThere), static_cast<uint32_t>(layout.sums_bytes()));
  }
  __device__ void fetch_w(int chunk, int stage) const {
    const uint32_t to = shared + layout.w(stage), there = barrier(kWThere, stage);
    const int half = p.rows / 2;
    barrier_arrive_expect(there, static_cast<uint32_t>(p.rows * kChunkBytes));
    box_copy(to, p.w, first_k(chunk), first_column, there);
    box_copy(to + half * kChunkBytes, p.w, first_k(chunk), first_column + (swiglu ? args.n : half),
             there);
  }
  __device__ void fetch_x(int chunk, int stage) const {
    const uint32_t to = shared + layout.x(stage), there = barrier(kXThere, stage);
    const int norm_bytes = args.norm != nullptr ? kChunk * 4 : 0;
    barrier_arrive_expect(there, static_cast<uint32_t>(kTokens * kChunkBytes + norm_bytes));
    if (norm_bytes > 0)
      bulk_copy(shared + layout.norm(stage), args.norm + first_k(chunk), kChunk * 4, there);
    box_copy(to, p.x, first_k(chunk), 0, there);
  }
  __device__ void copy() const {
    for_chunks([&](int chunk, int stage, uint32_t parity) {
      if (chunk >= p.stages) {
        barrier_wait(barrier(kUsed, stage), parity ^ 1);
        fetch_w(chunk, stage);
      }
      fetch_x(chunk, stage);
    });
  }

  /// Multiplies x by the norm's weights and sums its squares. A thread has one piece of 16 bytes in
  /// every kStep'th row; which columns they are is the same in all of them.
  __device__ void norm_x(int normer) const {
    constexpr int kStep = kNorming / 8, kRows = kTokens / kStep;
    const int thread = normer % kNorming, group = normer / kNorming;
    const int row = thread / 8, column = (thread % 8 ^ row % 8) * 8;
    float squares[kRows] = {};
    for_chunks([&](int chunk, int stage, uint32_t parity) {
      if (p.norming > kNorming && chunk % 2 != group) return;
      barrier_wait(barrier(kXThere, stage), parity);
      const uint32_t norm = shared + layout.norm(stage) + column * 4;
      const uint4 low = load_shared(norm), high = load_shared(norm + 16);
      const uint32_t at = shared + layout.x(stage) + thread * 16;
#pragma unroll
      for (int i = 0; i < kRows; ++i) {
        const uint4 x = load_shared(at + i * kStep * kChunkBytes);
        squares[i] = sum_squares<Bf16>(x, squares[i]);
        store_shared(at + i * kStep * kChunkBytes,
                     normed<Bf16>(x, 1, reinterpret_cast<const float4&>(low),
                                  reinterpret_cast<const float4&>(high)));
      }
      fence_async_proxy();
      __syncwarp();
      if (thread % 32 == 0) barrier_arrive(barrier(kXNormed, stage));
    });
    wait_for_ring();
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
#pragma unroll
      for (int lane = 4; lane > 0; lane /= 2)
        squares[i] += __shfl_xor_sync(0xffffffff, squares[i], lane);
      if (thread % 8 != 0) continue;
      const uint32_t to = shared + ((row + i * kStep) * layout.pitch() + p.rows) * 4;
      store_shared(to + group * 4, squares[i]);
      if (p.norming == kNorming) store_shared(to + 4, 0.f);
    }
  }

  /// A warpgroup multiplies 64 rows and leaves the sums where the ring was.
  __device__ void multiply(int thread) const {
    float sums[kTokens / 2];
    const int group = thread / 128, lane = thread % 32;
    const Kind x_there = args.norm != nullptr ? kXNormed : kXThere;
    for_chunks([&](int chunk, int stage, uint32_t parity) {
      barrier_wait(barrier(kWThere, stage), parity);
      barrier_wait(barrier(x_there, stage), parity);
      const uint32_t w = shared + layout.w(stage) + group * 64 * kChunkBytes;
      const uint32_t x = shared + layout.x(stage);
      wgmma_fence();
#pragma unroll
      for (int i = 0; i < kChunk / 16; ++i)
        Wgmma<Bf16, kTokens>::ss(sums, tile_descriptor(w + i * 32, 1024, 0),
                                 tile_descriptor(x + i * 32, 1024, 0), chunk + i > 0);
      wgmma_commit();
      if (chunk + p.stages < p.num_chunks) {  // the stage's place is needed
        wgmma_wait<0>();
        if (lane == 0) barrier_arrive(barrier(kUsed, stage));
      }
    });
    wgmma_wait<0>();
    pin(sums);
    wait_for_ring();
    if (thread < p.split) remote_barrier_arrive(remote_address(barrier(kRingsFree), thread));
    const int row = thread / 32 * 16 + lane / 4;
    if (row >= p.rows) return;  // a warp that had nothing to multiply
#pragma unroll
    for (int j = 0; j < kTokens / 2; ++j) {
      const int token = j / 4 * 8 + lane % 4 * 2 + j % 2;
      store_shared(shared + (token * layout.pitch() + row + j / 2 % 2 * 8) * 4, sums[j]);
    }
  }

  /// Those that multiply and norm: all products have ended.
  __device__ void wait_for_ring() const { named_barrier_sync(1, p.multiplying + p.norming); }

  /// Sends block `to` of the cluster the sums of its tokens.
  __device__ void send_sums(int to) const {
    const auto bytes = static_cast<uint32_t>(layout.sums_bytes() / p.split);
    barrier_wait(barrier(kRingsFree), 0);
    remote_bulk_copy(remote_address(shared + layout.sums_bytes() + rank * bytes, to),
                     shared + to * bytes, bytes, remote_address(barrier(kSumsThere), to));
  }

  /// Four of a token's sums over k; those of a block lie `stride` bytes behind the last one's.
  __device__ float4 sum_at(uint32_t address, int stride) const {
    uint4 part[kMaxSplit] = {};
#pragma unroll
    for (int i = 0; i < kMaxSplit; ++i)
      if (i < p.split) part[i] = load_shared(address + i * stride);
    float4 sum = {};
#pragma unroll
    for (int i = 0; i < kMaxSplit; ++i) {
      const float4& y = reinterpret_cast<const float4&>(part[i]);
      sum.x += y.x, sum.y += y.y, sum.z += y.z, sum.w += y.w;
    }
    return sum;
  }

  /// Writes the block's tokens, four columns a thread.
  __device__ void finish() const {
    const int stride = layout.sums_bytes() / p.split, per_token = columns / 4;
    const int num_tokens = kTokens / p.split;
    for (int i = threadIdx.x; i < num_tokens * per_token; i += blockDim.x) {
      const int row = i / per_token, column = i % per_token * 4;
      const int token = rank * num_tokens + row;
      if (token >= args.num_tokens) break;
      Bf16* const out =
          static_cast<Bf16*>(args.out) + int64_t{token} * args.n + first_column + column;
      Vec<Bf16, 4> y = {};
      if (args.end == SmallMatmul::End::kAdd) y = load<4>(out);  // comes while the sums do
      barrier_wait(barrier(kSumsThere), 0);
      const uint32_t from = shared + layout.sums_bytes() + row * layout.pitch() * 4;
      float scale = 1;
      if (args.norm != nullptr) {
        const float4 squares = sum_at(from + p.rows * 4, stride);  // of both groups
        scale =
            rsqrtf((squares.x + squares.y) * __fdividef(1, static_cast<float>(args.k)) + args.eps);
      }
      const float4 a = sum_at(from + column * 4, stride);
      float at[4] = {a.x * scale, a.y * scale, a.z * scale, a.w * scale};
      if (swiglu) {
        const float4 b = sum_at(from + (columns + column) * 4, stride);
        const float up[4] = {b.x * scale, b.y * scale, b.z * scale, b.w * scale};
#pragma unroll
        for (int j = 0; j < 4; ++j) y.x[j] = cuda::swiglu<Bf16>(at[j], up[j]);
      } else {
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          if (args.bias != nullptr) at[j] += args.bias[first_column + column + j];
          y.x[j] = from_float<Bf16>(to_float(y.x[j]) + at[j]);
        }
      }
      store<4>(out, y);
    }
    // Without tokens too: no copy comes to a block that has ended.
    barrier_wait(barrier(kSumsThere), 0);
  }

  /// The same of rows that are a head of q, k or v: a warp has a token, a lane four neighbours.
  __device__ void finish_head() const {
    constexpr int kPer = 4, kHalfLanes = 16;
    const RopeParams& r = p.rope;
    const int lane = threadIdx.x % 32, at = lane * kPer, head = first_column / kHeadDim;
    const int num_kv_heads = r.layout.num_kv_heads, num_tokens = kTokens / p.split;
    const bool is_q = head < r.num_heads, is_v = head >= r.num_heads + num_kv_heads;
    const float* const norm = is_q ? r.q_norm : is_v ? nullptr : r.k_norm;
    const int stride = layout.sums_bytes() / p.split;
    for (int row = threadIdx.x / 32; row < num_tokens; row += blockDim.x / 32) {
      const int token = rank * num_tokens + row;
      if (token >= args.num_tokens) break;
      Bf16* to = static_cast<Bf16*>(args.out) + int64_t{token} * args.n + first_column + at;
      const int slot = is_q ? 0 : r.slot_mapping[token];
      if (!is_q && slot >= 0)
        to = static_cast<Bf16*>(r.k) + (is_v ? r.layout.layer_stride : 0) +
             r.layout.entry(slot / r.layout.block_size, (head - r.num_heads) % num_kv_heads) +
             r.layout.at(slot % r.layout.block_size, at);
      Vec<float, kPer> cos = {}, sin = {}, weight = {1, 1, 1, 1}, bias = {};
      if (!is_v) {
        const int64_t angle = r.positions[token] * int64_t{kHeadDim / 2} + lane % kHalfLanes * kPer;
        cos = load<kPer>(r.cos + angle);
        sin = load<kPer>(r.sin + angle);
      }
      if (norm != nullptr) weight = load<kPer>(norm + at);
      if (args.bias != nullptr) bias = load<kPer>(args.bias + first_column + at);
      barrier_wait(barrier(kSumsThere), 0);
      const uint32_t from = shared + layout.sums_bytes() + row * layout.pitch() * 4;
      const float4 squares = sum_at(from + kHeadDim * 4, stride);
      const float scale =
          rsqrtf((squares.x + squares.y) * __fdividef(1, static_cast<float>(args.k)) + args.eps);
      const float4 sum = sum_at(from + at * 4, stride);
      float x[kPer] = {sum.x * scale, sum.y * scale, sum.z * scale, sum.w * scale};
      float own = 0;  // squares
#pragma unroll
      for (int i = 0; i < kPer; ++i) {
        x[i] = to_float(from_float<Bf16>(x[i] + bias.x[i]));  // as the product alone leaves it
        own += x[i] * x[i];
      }
      const float head_scale = norm != nullptr ? rsqrtf(warp_sum(own) / kHeadDim + r.eps) : 1.0f;
      Vec<Bf16, kPer> y;
#pragma unroll
      for (int i = 0; i < kPer; ++i) {
        const float mine = x[i] * (head_scale * weight.x[i]);
        const float other = __shfl_xor_sync(0xffffffff, mine, kHalfLanes);
        const float turned = lane < kHalfLanes ? mine * cos.x[i] - other * sin.x[i]
                                               : mine * cos.x[i] + other * sin.x[i];
        y.x[i] = from_float<Bf16>(is_v ? x[i] : turned);
      }
      if (slot >= 0) store<kPer>(to, y);
    }
    barrier_wait(barrier(kSumsThere), 0);
  }
};

template <int kTokens, bool kRoped>
__global__ void __launch_bounds__(kMaxThreads, 2)
    mid_matmul_kernel(const __grid_constant__ Params p) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ __align__(1024) unsigned char memory[];
  const Block<kTokens> block{.p = p, .shared = shared_address(memory)};
  const int thread = threadIdx.x, normer = thread - p.multiplying, copier = normer - p.norming;
  if (copier == 0) block.begin_copies();
  if (normer >= 0 && copier < 0)
    for (int i = normer * 32; i < p.num_chunks * kChunk; i += p.norming * 32)
      prefetch_l2(p.args.norm + block.first_k(0) + i);
  __syncwarp();
  cluster_sync_relaxed();  // all barriers are there
  if (p.early) launch_next();
  wait_before();
  if (!p.early) launch_next();

  if (normer < 0) block.multiply(thread);
  else if (copier == 0) block.copy();
  else if (copier < 0) block.norm_x(normer);
  __syncwarp();
  fence_async_proxy();
  __syncthreads();
  if (thread < p.split) block.send_sums(thread);
  __syncwarp();
  if constexpr (kRoped) block.finish_head();
  else block.finish();
  __syncwarp();
  cluster_sync_relaxed();  // nobody reads this block's sums any more
#endif
}

// -- launcher

template <int kTokens, bool kRoped>
void run(Launch where, const SmallMatmul& args, const Plan& plan, const RopeParams& rope) {
  const int parts = args.end == SmallMatmul::End::kSwiglu ? 2 : 1;  // of w: gates and ups
  const int num_chunks = args.k / kChunk / plan.split;
  const int multiplying = (plan.rows + 63) / 64 * 128;
  const Params params = {
      .w = tensor_map(args.w, parts * args.n, args.k, plan.rows / 2),
      .x = tensor_map(args.x, args.num_tokens, args.k, kTokens),
      .args = args,
      .rows = plan.rows,
      .split = plan.split,
      .stages = plan.stages,
      .num_chunks = num_chunks,
      .multiplying = multiplying,
      // What a second warpgroup of multiplying would take.
      .norming = args.norm == nullptr ? 0 : kNorming * (multiplying > 128 ? 1 : 2),
      // As in small_matmul.cu: only one with a long stream lets the next one's copies queue behind.
      .early = num_chunks > plan.stages,
      .rope = rope};
  const int bytes = Layout<kTokens>(plan.rows, plan.stages).bytes();
  constexpr auto kernel = mid_matmul_kernel<kTokens, kRoped>;
  static int allowed = 0;  // only grows: graphs hold launches of all sizes
  if (bytes > allowed) {
    cuda_check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes),
               "shared memory");
    allowed = bytes;
  }
  launch(ClusterLaunch{where, plan.split}, kernel,
         dim3(static_cast<unsigned>(parts * args.n / plan.rows * plan.split)),
         params.multiplying + params.norming + 32, static_cast<size_t>(bytes), params);
}

const Plan* find_plan(const SmallMatmul& args) {
  for (const Plan& plan : kPlans)
    if (plan.end == args.end && plan.n == args.n && plan.k == args.k &&
        args.num_tokens <= plan.max_tokens)
      return &plan;
  return nullptr;
}

template <bool kRoped>
void start(Launch where, const SmallMatmul& args, const RopeParams& rope) {
  const Plan* const plan = find_plan(args);
  check_args(plan != nullptr, "mid_matmul: a shape that it does not serve");
  if (args.num_tokens <= 32) run<32, kRoped>(where, args, *plan, rope);
  else run<64, kRoped>(where, args, *plan, rope);
}

}  // namespace

bool is_mid_matmul(const SmallMatmul& args, DType dtype) {
  // Float16 could overflow where the scale comes last.
  return dtype == DType::kBF16 && args.num_tokens > kFewTokens && find_plan(args) != nullptr;
}

void mid_matmul(Launch where, const SmallMatmul& args) {
  start<false>(where, args, RopeParams({}, {}, {}));
}

bool is_roped_matmul(const SmallMatmul& args, DType dtype, const RopeParams& rope) {
  return is_mid_matmul(args, dtype) && args.end == SmallMatmul::End::kStore &&
         args.norm != nullptr && rope.layout.tiled && rope.layout.head_dim == kHeadDim &&
         find_plan(args)->rows == kHeadDim;
}

void roped_matmul(Launch where, const SmallMatmul& args, const RopeParams& rope) {
  start<true>(where, args, rope);
}

}  // namespace nanovllm::cuda
