#pragma once

#include "nanovllm/ops/cuda/device/device.cuh"
#include "nanovllm/ops/cuda/device/tensor_map.cuh"
#include "nanovllm/ops/cuda/device/wgmma.cuh"
#include "nanovllm/ops/cuda/elementwise/row_ops.cuh"
#include "nanovllm/ops/cuda/gemm/hopper/swap_ab_gemm.h"

// The thread block of swap_ab_gemm.cu: its layout in shared memory, its main loop, its epilogues.
// It is warp-specialised: one lane of the last warp is the producer, which copies w and x into the
// ring; one to four warpgroups are the consumers, which multiply.
namespace nanovllm::cuda::swap_ab {
using namespace hopper;

// -- layout

constexpr int kChunk = kBoxColumns;        // columns of k in a stage
constexpr int kChunkBytes = kBoxRowBytes;  // bytes of a row in a stage
constexpr int kMaxSplit = 8;
constexpr int kPerLine = 32;            // floats in 128 bytes, which the L2 cache fetches at once
constexpr int kThreads = 2 * 128 + 32;  // the least: two warpgroups and the producer's warp

struct Params {
  CUtensorMap w, x;  // boxes of [rows / 2, kChunk] and [kTokens, kChunk]
  GemmArgs args;
  DeferredNorm norm;
  int rows, split, stages;
  int num_chunks;   // chunks of k, in all thread blocks of a cluster together
  int consumers;    // threads that multiply
  bool early;       // lets the next kernel start before the previous one has ended
  RopeParams rope;  // if out is q, k and v
};

/// The operands of a Block: how a stage of w and x is copied. quantized/hopper/ has the operands
/// for quantized weights.
struct PlainOperands {
  using Params = swap_ab::Params;
  static constexpr bool kQuantized = false;
  static constexpr int kReaders = 1;  // threads of a warp that say that it has read a stage
  static constexpr int kChunk = swap_ab::kChunk;  // columns of a stage
  /// Threads of a thread block and thread blocks of a multiprocessor, at most.
  static constexpr int kMostThreads = kThreads, kResident = 3;
  /// Bytes of a stage: of w, and of x.
  static __host__ __device__ int bytes(int rows) { return rows * kChunkBytes; }
  static __host__ __device__ int x_bytes(int tokens) { return tokens * kChunkBytes; }

  /// Adds w and x to the parameters of a kernel. `tokens` is the number of rows of x in a stage.
  static Params with_operands(Params p, int tokens) {
    const int parts = p.args.epilogue == Epilogue::kSwiglu ? 2 : 1;
    p.w = tensor_map(p.args.w, parts * p.args.n, p.args.k, p.rows / 2);
    p.x = tensor_map(p.args.x, p.args.num_tokens, p.args.k, tokens);
    return p;
  }

  const Params& p;
  __device__ uint32_t copied_bytes() const { return static_cast<uint32_t>(bytes(p.rows)); }
  /// Copies half of the rows of a stage, which begin with row `row` of w.
  __device__ void copy(uint32_t stage, int half, int chunk, int row, uint32_t barrier) const {
    box_copy(stage + half * (p.rows / 2) * kChunkBytes, p.w, chunk * kChunk, row, barrier);
  }
  template <int kTokens>
  __device__ uint32_t copied_x_bytes() const {
    return kTokens * kChunkBytes;
  }
  template <int kTokens>
  __device__ void copy_x(uint32_t stage, int chunk, uint32_t barrier) const {
    box_copy(stage, p.x, chunk * kChunk, 0, barrier);
  }
};

/// mbarriers. Each stage has three: w has arrived, x has arrived, both have been read. The thread
/// block has two: all rings of the cluster may be overwritten by sums; all sums have arrived.
enum Kind { kWFull, kXFull, kEmpty, kRingsFree, kSumsFull };

/// Offsets in shared memory: the ring, then the barriers. After the main loop the memory of the
/// ring holds sums: first this thread block's sums of all tokens, [kTokens, pitch], then the sums
/// that all thread blocks of the cluster have of the tokens that this one finishes, [split, kTokens
/// / split, pitch].
template <int kTokens, class Operands>
struct Layout {
  int rows, stages, ring_bytes;
  __host__ __device__ Layout(int rows_, int stages_)
      : rows(rows_), stages(stages_), ring_bytes(max(stages_ * stage_bytes(), 2 * sums_bytes())) {}
  __host__ __device__ int stage_bytes() const {
    return Operands::bytes(rows) + Operands::x_bytes(kTokens);
  }
  /// Floats from one token's sums to the next one's; chosen so that stores have no bank conflicts.
  __host__ __device__ int pitch() const { return rows + 4; }
  __host__ __device__ int sums_bytes() const { return kTokens * pitch() * 4; }
  __host__ __device__ int w(int stage) const { return stage * stage_bytes(); }
  __host__ __device__ int x(int stage) const { return w(stage) + Operands::bytes(rows); }
  __host__ __device__ int barrier(Kind kind, int stage) const {
    const int index =
        kind < kRingsFree ? kind * stages + stage : kRingsFree * stages + kind - kRingsFree;
    return ring_bytes + index * 8;
  }
  __host__ __device__ int bytes() const { return barrier(kSumsFull, 0) + 8; }
};

// -- thread block

/// kTokens is 32 or 64. All warps run the epilogue for the tokens that this thread block finishes.
template <int kTokens, class Operands = PlainOperands>
struct Block {
  using T = Bf16;
  const typename Operands::Params& p;
  const Operands operands{p};
  const GemmArgs& args = p.args;
  const Layout<kTokens, Operands> layout{p.rows, p.stages};
  const uint32_t shared;
  const bool swiglu = args.epilogue == Epilogue::kSwiglu;
  const int rank = cluster_rank();  // which part of k this thread block has
  const int columns = swiglu ? p.rows / 2 : p.rows;
  const int first_column = static_cast<int>(blockIdx.x) / p.split * columns;
  const int first_chunk = p.num_chunks * rank / p.split;
  const int num_chunks = p.num_chunks * (rank + 1) / p.split - first_chunk;

  __device__ uint32_t barrier(Kind kind, int stage = 0) const {
    return shared + layout.barrier(kind, stage);
  }
  /// The row of w with which a half of the thread block's rows begins; with SwiGLU the halves are
  /// gates and ups.
  __device__ int first_row(int half) const {
    return first_column + half * (swiglu ? args.n : p.rows / 2);
  }

  /// Calls body(chunk, stage, parity) for each of the thread block's chunks.
  template <class Body>
  __device__ void for_chunks(Body body) const {
    int stage = 0;
    uint32_t parity = 0;
    for (int chunk = 0; chunk < num_chunks; ++chunk) {
      body(chunk, stage, parity);
      if (++stage == p.stages) stage = 0, parity ^= 1;
    }
  }

  // The producer.

  __device__ void init_barriers() const {
    for (int stage = 0; stage < p.stages; ++stage) {
      barrier_init(barrier(kWFull, stage), 1);
      barrier_init(barrier(kXFull, stage), 1);
      barrier_init(barrier(kEmpty, stage), p.rows / 16 * Operands::kReaders);
    }
    barrier_init(barrier(kRingsFree), p.split);
    barrier_init(barrier(kSumsFull), 1);
    fence_barrier_init();
  }
  /// Copies as much of w as the ring holds.
  __device__ void begin_copies() const {
    for (int chunk = 0; chunk < min(p.stages, num_chunks); ++chunk) {
      fetch_w(chunk, chunk);
      expect_x(chunk);
    }
    prefetch_tensor_map(p.x);
    if (p.split > 1)
      barrier_arrive_expect(barrier(kSumsFull), static_cast<uint32_t>(layout.sums_bytes()));
  }
  __device__ void fetch_w(int chunk, int stage) const {
    const uint32_t there = barrier(kWFull, stage);
    barrier_arrive_expect(there, operands.copied_bytes());
#pragma unroll
    for (int half = 0; half < 2; ++half)
      operands.copy(shared + layout.w(stage), half, first_chunk + chunk, first_row(half), there);
  }
  __device__ void expect_x(int stage) const {
    barrier_arrive_expect(barrier(kXFull, stage), operands.template copied_x_bytes<kTokens>());
  }
  __device__ void copy() const {
    for_chunks([&](int chunk, int stage, uint32_t parity) {
      if (chunk >= p.stages) {
        barrier_wait(barrier(kEmpty, stage), parity ^ 1);
        fetch_w(chunk, stage);
        expect_x(stage);
      }
      operands.template copy_x<kTokens>(shared + layout.x(stage), first_chunk + chunk,
                                        barrier(kXFull, stage));
    });
  }

  /// The consumers: a warpgroup multiplies 64 rows and writes the sums where the ring was.
  __device__ void multiply(int thread) const {
    if constexpr (Operands::kQuantized) return operands.multiply(*this, thread);
    float sums[kTokens / 2];
    const int group = thread / 128, lane = thread % 32;
    for_chunks([&](int chunk, int stage, uint32_t parity) {
      barrier_wait(barrier(kWFull, stage), parity);
      barrier_wait(barrier(kXFull, stage), parity);
      const uint32_t w = shared + layout.w(stage) + group * 64 * kChunkBytes;
      const uint32_t x = shared + layout.x(stage);
      wgmma_fence();
#pragma unroll
      for (int i = 0; i < kChunk / 16; ++i)
        Wgmma<T, kTokens>::ss(sums, tile_descriptor(w + i * 32, 1024, 0),
                              tile_descriptor(x + i * 32, 1024, 0), chunk + i > 0);
      wgmma_commit();
      if (chunk + p.stages < num_chunks) {  // another chunk will be copied into this stage
        wgmma_wait<0>();
        if (lane == 0) barrier_arrive(barrier(kEmpty, stage));
      }
    });
    wgmma_wait<0>();
    pin(sums);
    store_sums(sums, thread);
  }

  /// Writes a consumer's sums where the ring was.
  __device__ void store_sums(const float (&sums)[kTokens / 2], int thread) const {
    named_barrier_sync(1, p.consumers);  // all consumers have read the ring
    if (p.split > 1 && thread < p.split)
      remote_barrier_arrive(remote_address(barrier(kRingsFree), thread));
    if constexpr (Operands::kQuantized) {
      // Consumers that multiplied other chunks of the same rows add theirs afterwards.
      const int per_chunk = 2 * p.rows;
      if (thread < per_chunk) write_sums<false>(sums, thread);
      for (int turn = 1; turn < p.consumers / per_chunk; ++turn) {
        named_barrier_sync(1, p.consumers);
        if (thread / per_chunk == turn) write_sums<true>(sums, thread % per_chunk);
      }
    } else {
      write_sums<false>(sums, thread);
    }
  }
  template <bool kAdds>
  __device__ __forceinline__ void write_sums(const float (&sums)[kTokens / 2], int thread) const {
    const int lane = thread % 32, row = thread / 32 * 16 + lane / 4;
#pragma unroll
    for (int j = 0; j < kTokens / 2; ++j) {
      const int token = j / 4 * 8 + lane % 4 * 2 + j % 2;
      const uint32_t to = shared + (token * layout.pitch() + row + j / 2 % 2 * 8) * 4;
      store_shared(to, sums[j] + (kAdds ? __uint_as_float(load_shared_word(to)) : 0));
    }
  }

  /// Sends the sums of the tokens that thread block `to` of the cluster finishes.
  __device__ void send_sums(int to) const {
    if (p.split == 1) return;
    const auto bytes = static_cast<uint32_t>(layout.sums_bytes() / p.split);
    barrier_wait(barrier(kRingsFree), 0);
    remote_bulk_copy(remote_address(shared + layout.sums_bytes() + rank * bytes, to),
                     shared + to * bytes, bytes, remote_address(barrier(kSumsFull), to));
  }

  /// Waits for the sums, and lets the cluster know that they have arrived. Each thread does so
  /// once, before its first part of the epilogue, so that no thread block waits for others at the
  /// end.
  __device__ void receive_sums(bool& has_received) const {
    if (has_received) return;
    has_received = true;
    if (p.split > 1) barrier_wait(barrier(kSumsFull), 0);
    cluster_arrive_alone();
  }
  /// Where the sums of token `row` of this thread block's tokens are.
  __device__ uint32_t sums_at(int row) const {
    return shared + (p.split > 1 ? layout.sums_bytes() : 0) + row * layout.pitch() * 4;
  }
  /// Adds four columns of a token over the ranges of k, which are `stride` bytes apart.
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

  /// 1 / rms of a token if this GEMM finishes a deferred norm, else 1. `lanes` neighbouring lanes
  /// call this together.
  __device__ float factor(int token, int lane, int lanes) const {
    if (args.epilogue == Epilogue::kAdd || p.norm.squares == nullptr) return 1;
    float squares = 0;
    for (int part = lane; part < p.norm.num_parts; part += lanes)
      squares += p.norm.squares[part * kNormTokens + token];
    const float mean = lanes_sum(squares, lanes) * __fdividef(1, static_cast<float>(args.k));
    return rsqrtf(mean + args.eps);
  }
  /// Begins a deferred norm: writes four columns of residual * weight and adds their squares.
  __device__ void defer_norm(const Vec<T, 4>& y, const Vec<float, 4>& weight, int token, int column,
                             int lanes) const {
    Vec<T, 4> x;
    float squares = 0;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const float value = to_float(y.x[j]);
      squares += value * value;
      x.x[j] = from_float<T>(value * weight.x[j]);
    }
    store<4>(static_cast<T*>(p.norm.x) + int64_t{token} * args.n + first_column + column, x);
    squares = lanes_sum(squares, lanes);
    if (column == 0) p.norm.squares[first_column / p.rows * kNormTokens + token] = squares;
  }

  /// Prefetches into the L2 cache what finish() will read; no kernel of the step writes it.
  __device__ void prefetch_norm() const {
    const int i = threadIdx.x * kPerLine;
    if (p.norm.weight != nullptr && args.epilogue == Epilogue::kAdd && i < p.rows)
      prefetch_l2(p.norm.weight + first_column + i);
  }

  /// The epilogue for the tokens that this thread block finishes; a thread computes four columns.
  __device__ void finish() const {
    const int stride = layout.sums_bytes() / p.split, per_token = columns / 4;
    const int num_tokens = kTokens / p.split;
    bool has_received = false;
    for (int i = threadIdx.x; i < num_tokens * per_token; i += blockDim.x) {
      const int row = i / per_token, column = i % per_token * 4;
      const int token = rank * num_tokens + row;
      if (token >= args.num_tokens) break;
      T* const out = static_cast<T*>(args.out) + int64_t{token} * args.n + first_column + column;
      // These loads are issued before the wait for the sums.
      const bool adds = args.epilogue == Epilogue::kAdd;
      const bool norms = adds && p.norm.weight != nullptr;
      Vec<T, 4> y = {};
      Vec<float, 4> weight = {};
      if (adds) y = load<4>(out);
      if (norms) weight = load<4>(p.norm.weight + first_column + column);
      // `lanes` must be a power of two; with a quantized weight per_token may not be one.
      const int lanes = Operands::kQuantized ? 8 : per_token;
      const float scale = factor(token, column / 4 % lanes, lanes);
      receive_sums(has_received);
      const uint32_t from = sums_at(row);
      const float4 a = sum_at(from + column * 4, stride);
      float at[4] = {a.x * scale, a.y * scale, a.z * scale, a.w * scale};
      if (swiglu) {
        const float4 b = sum_at(from + (columns + column) * 4, stride);
        const float up[4] = {b.x * scale, b.y * scale, b.z * scale, b.w * scale};
#pragma unroll
        for (int j = 0; j < 4; ++j) y.x[j] = swiglu_of_sums<T>(at[j], up[j]);
      } else {
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          if (args.bias != nullptr) at[j] += args.bias[first_column + column + j];
          y.x[j] = from_float<T>(to_float(y.x[j]) + at[j]);
        }
      }
      store<4>(out, y);
      if (norms) defer_norm(y, weight, token, column, per_token);
    }
    // Threads without tokens wait too: no thread block may end before every copy to it has arrived.
    receive_sums(has_received);
  }

  /// Prefetches into the L2 cache what finish_heads() will read.
  template <int kHeadDim>
  __device__ void prefetch_angles() const {
    const RopeParams& r = p.rope;
    if (const int i = threadIdx.x * kPerLine; r.q_norm != nullptr && i < kHeadDim) {
      prefetch_l2(r.q_norm + i);
      prefetch_l2(r.k_norm + i);
    }
    constexpr int kLines = kHeadDim / 2 / kPerLine;  // cache lines of a token's cosines
    const int num_tokens = kTokens / p.split, line = threadIdx.x % kLines * kPerLine;
    for (int i = threadIdx.x / kLines; i < num_tokens; i += blockDim.x / kLines) {
      const int token = min(rank * num_tokens + i, args.num_tokens - 1);
      const int64_t angle = r.positions[token] * int64_t{kHeadDim / 2} + line;
      prefetch_l2(r.cos + angle);
      prefetch_l2(r.sin + angle);
    }
  }

  /// The epilogue if the rows are heads of q, k or v: a head's norm, rotation and store. A lane has
  /// four neighbouring elements of each half of a head of a token, which rotate together.
  template <int kHeadDim, class C>
  __device__ void finish_heads() const {
    constexpr int kPer = 4, kHalf = kHeadDim / 2, kLanes = kHalf / kPer;
    const RopeParams& r = p.rope;
    const int lane = threadIdx.x % kLanes, at = lane * kPer;
    const int num_tokens = kTokens / p.split, num_rows = p.rows / kHeadDim * num_tokens;
    const int stride = layout.sums_bytes() / p.split;
    bool has_received = false;
    // num_rows is a multiple of a warp's rows, so all of them exist or none; their tokens may not.
    for (int i = threadIdx.x / kLanes; i < num_rows; i += blockDim.x / kLanes) {
      const int row = i % num_tokens, column = i / num_tokens * kHeadDim + at;
      const int head = (first_column + column) / kHeadDim;
      const bool is_q = r.is_q(head), is_v = r.is_v(head);
      const float* const norm = r.norm(head);
      const bool there = rank * num_tokens + row < args.num_tokens;
      const int token = there ? rank * num_tokens + row : args.num_tokens - 1;
      const int slot = is_q ? 0 : r.slot_mapping[token];
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
          bias[half] = load<kPer>(args.bias + first_column + half * kHalf + column);
      }
      const float scale = factor(token, lane, kLanes);
      receive_sums(has_received);
      const uint32_t from = sums_at(row);
      HeadPart<T, kPer> part;  // rounded to bfloat16, as a separate GEMM would store it
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float4 sum = sum_at(from + (half * kHalf + column) * 4, stride);
        float y[kPer] = {sum.x, sum.y, sum.z, sum.w};
#pragma unroll
        for (int j = 0; j < kPer; ++j) y[j] = y[j] * scale + bias[half].x[j];
        (half == 0 ? part.low : part.high) = rounded<T>(y);
      }
      const float squares = lanes_sum(add_squares(part.high, add_squares(part.low, 0)), kLanes);
      const float factor = norm != nullptr ? rms_factor(squares, kHeadDim, r.eps) : 1.0f;
      if (!is_v) part.norm_and_rotate(norm != nullptr, factor, weight[0], weight[1], cos, sin);
      if (!there || slot < 0) continue;
      if (is_q) {
        T* const out = static_cast<T*>(args.out) + int64_t{token} * args.n + first_column + column;
        store<kPer>(out, part.low);
        store<kPer>(out + kHalf, part.high);
        continue;
      }
      const float key_scale = scale_of_head<C>(part.low, part.high, kLanes);
      const CacheEntry<C> entry = r.cache_entry<C>(head, slot);
      entry.store(r.layout, at, cache_elements<C>(part.low, 1 / key_scale));
      entry.store(r.layout, at + kHalf, cache_elements<C>(part.high, 1 / key_scale));
      if (at == 0) entry.store_scale(r.layout, key_scale);
    }
    receive_sums(has_received);
  }
};

}  // namespace nanovllm::cuda::swap_ab
