#pragma once

#include "nanovllm/ops/cuda/device.cuh"
#include "nanovllm/ops/cuda/rope.h"
#include "nanovllm/ops/cuda/small_matmul.cuh"
#include "nanovllm/ops/cuda/tensor_map.cuh"
#include "nanovllm/ops/cuda/wgmma.cuh"

// What a block of mid_matmul.cu has and does.
namespace nanovllm::cuda::mid {
using namespace hopper;

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

// -- block

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

  /// The norm's factor of the token whose sums begin there.
  __device__ float scale_at(uint32_t sums, int stride) const {
    const float4 squares = sum_at(sums + p.rows * 4, stride);  // of both groups
    const float mean = (squares.x + squares.y) * __fdividef(1, static_cast<float>(args.k));
    return rsqrtf(mean + args.eps);
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
      const float scale = args.norm != nullptr ? scale_at(from, stride) : 1;
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

  /// What finish_head() will want, which is older than the kernel before, on its way to the L2.
  __device__ void prefetch_angles() const {
    const RopeParams& r = p.rope;
    const int num_tokens = kTokens / p.split, half = threadIdx.x % 2 * 32;
    for (int i = threadIdx.x / 2; i < num_tokens; i += blockDim.x / 2) {
      const int token = min(rank * num_tokens + i, args.num_tokens - 1);
      const int64_t angle = r.positions[token] * int64_t{kHeadDim / 2} + half;
      prefetch_l2(r.cos + angle);
      prefetch_l2(r.sin + angle);
    }
  }

  /// The same of rows that are a head of q, k or v: half a warp has a token, a lane four neighbours
  /// of either half of the head, which rotate together.
  __device__ void finish_head() const {
    constexpr int kPer = 4, kLanes = 16, kHalf = kHeadDim / 2;
    const RopeParams& r = p.rope;
    const int lane = threadIdx.x % kLanes, at = lane * kPer, head = first_column / kHeadDim;
    const int num_kv_heads = r.layout.num_kv_heads, num_tokens = kTokens / p.split;
    const bool is_q = head < r.num_heads, is_v = head >= r.num_heads + num_kv_heads;
    const float* const norm = is_q ? r.q_norm : is_v ? nullptr : r.k_norm;
    const int stride = layout.sums_bytes() / p.split;
    // num_tokens is even: both halves of a warp have a row, of which one may be nobody's.
    for (int row = threadIdx.x / kLanes; row < num_tokens; row += blockDim.x / kLanes) {
      const bool there = rank * num_tokens + row < args.num_tokens;
      const int token = there ? rank * num_tokens + row : args.num_tokens - 1;
      Bf16 *low = static_cast<Bf16*>(args.out) + int64_t{token} * args.n + first_column + at,
           *high = low + kHalf;
      const int slot = is_q ? 0 : r.slot_mapping[token];
      if (!is_q && slot >= 0) {
        Bf16* const entry =
            static_cast<Bf16*>(r.k) + (is_v ? r.layout.layer_stride : 0) +
            r.layout.entry(slot / r.layout.block_size, (head - r.num_heads) % num_kv_heads);
        low = entry + r.layout.at(slot % r.layout.block_size, at);
        high = entry + r.layout.at(slot % r.layout.block_size, at + kHalf);
      }
      Vec<float, kPer> cos = {1, 1, 1, 1}, sin = {};
      if (!is_v) {
        const int64_t angle = r.positions[token] * int64_t{kHalf} + at;
        cos = load<kPer>(r.cos + angle);
        sin = load<kPer>(r.sin + angle);
      }
      Vec<float, kPer> weight[2] = {{1, 1, 1, 1}, {1, 1, 1, 1}}, bias[2] = {};
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        if (norm != nullptr) weight[half] = load<kPer>(norm + half * kHalf + at);
        if (args.bias != nullptr)
          bias[half] = load<kPer>(args.bias + first_column + half * kHalf + at);
      }
      barrier_wait(barrier(kSumsThere), 0);
      const uint32_t from = shared + layout.sums_bytes() + row * layout.pitch() * 4;
      const float scale = scale_at(from, stride);
      float x[2][kPer], own = 0;  // squares
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float4 sum = sum_at(from + (half * kHalf + at) * 4, stride);
        const float sums[kPer] = {sum.x, sum.y, sum.z, sum.w};
#pragma unroll
        for (int i = 0; i < kPer; ++i) {
          // As the product alone leaves it.
          x[half][i] = to_float(from_float<Bf16>(sums[i] * scale + bias[half].x[i]));
          own += x[half][i] * x[half][i];
        }
      }
#pragma unroll
      for (int i = kLanes / 2; i > 0; i /= 2) own += __shfl_xor_sync(0xffffffff, own, i);
      const float head_scale = norm != nullptr ? rsqrtf(own / kHeadDim + r.eps) : 1.0f;
      Vec<Bf16, kPer> y[2];
#pragma unroll
      for (int i = 0; i < kPer; ++i) {
        const float a = x[0][i] * (head_scale * weight[0].x[i]);
        const float b = x[1][i] * (head_scale * weight[1].x[i]);
        y[0].x[i] = from_float<Bf16>(is_v ? x[0][i] : a * cos.x[i] - b * sin.x[i]);
        y[1].x[i] = from_float<Bf16>(is_v ? x[1][i] : b * cos.x[i] + a * sin.x[i]);
      }
      if (!there || slot < 0) continue;
      store<kPer>(low, y[0]);
      store<kPer>(high, y[1]);
    }
    barrier_wait(barrier(kSumsThere), 0);
  }
};

}  // namespace nanovllm::cuda::mid
