#include <algorithm>

#include "nanovllm/ops/cuda/gemm/quantized/byte_map.cuh"
#include "nanovllm/ops/cuda/gemm/quantized/quantized_gemm.h"
#include "nanovllm/ops/cuda/gemm/swap_ab_block.cuh"

// swap_ab_gemm.cu for weights and activations in E4M3. The tensor cores add the products of one
// chunk of k, whose scales are the same, and a consumer adds these sums, scaled, in float32. What
// comes after the sums is the same.
namespace nanovllm::cuda {
namespace {
using namespace swap_ab;

// -- layout

constexpr int kRows = 128;                   // of w in a thread block
constexpr int kE4M3Chunk = kQuantizedChunk;  // columns, and bytes of a row
constexpr int kValueBytes = kRows * kE4M3Chunk;

/// A stage has the values of w, those of x, and the scales of x.
template <int kTokens>
struct E4M3Layout {
  static constexpr int kXAt = kValueBytes, kScalesAt = kXAt + kTokens * kE4M3Chunk;
  static constexpr int kStageBytes = kScalesAt + 1024;
  int rows, stages, ring_bytes;
  __host__ __device__ E4M3Layout(int rows_, int stages_)
      : rows(rows_), stages(stages_), ring_bytes(max(stages_ * kStageBytes, 2 * sums_bytes())) {}
  __host__ __device__ int pitch() const { return rows + 4; }
  __host__ __device__ int sums_bytes() const { return kTokens * pitch() * 4; }
  __host__ __device__ int w(int stage) const { return stage * kStageBytes; }
  __host__ __device__ int x(int stage) const { return w(stage) + kXAt; }
  __host__ __device__ int scales(int stage) const { return w(stage) + kScalesAt; }
  __host__ __device__ int barrier(Kind kind, int stage) const {
    const int index =
        kind < kRingsFree ? kind * stages + stage : kRingsFree * stages + kind - kRingsFree;
    return ring_bytes + index * 8;
  }
  __host__ __device__ int bytes() const { return barrier(kSumsFull, 0) + 8; }
};

// -- d = a b or d += a b by wgmma, both from shared memory

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define TEN(x, t) \
  x(t##0), x(t##1), x(t##2), x(t##3), x(t##4), x(t##5), x(t##6), x(t##7), x(t##8), x(t##9)
#define VALUE(i) "+f"(d[i])
__device__ __forceinline__ void multiply(float (&d)[16], uint64_t a, uint64_t b, int adds) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %18, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n32k32.f32.e4m3.e4m3 {%0, %1, %2, %3, %4, %5, %6, %7, %8, "
      "%9, %10, %11, %12, %13, %14, %15}, %16, %17, p, 1, 1;\n}\n"
      : TEN(VALUE, ), VALUE(10), VALUE(11), VALUE(12), VALUE(13), VALUE(14), VALUE(15)
      : "l"(a), "l"(b), "r"(adds));
}
__device__ __forceinline__ void multiply(float (&d)[32], uint64_t a, uint64_t b, int adds) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %34, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n64k32.f32.e4m3.e4m3 {%0, %1, %2, %3, %4, %5, %6, %7, %8, "
      "%9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, "
      "%27, %28, %29, %30, %31}, %32, %33, p, 1, 1;\n}\n"
      : TEN(VALUE, ), TEN(VALUE, 1), TEN(VALUE, 2), VALUE(30), VALUE(31)
      : "l"(a), "l"(b), "r"(adds));
}
#undef TEN
#undef VALUE
#endif

// -- thread block

struct E4M3Params {
  QuantizedWeight w;
  const float* x_scales;  // [chunks, stride], or [stride] if chunk_stride is 0
  int chunk_stride;
  int scale_bytes;  // of a chunk
};

template <int kTokens, class T>
struct E4M3Block : Block<kTokens, E4M3Layout<kTokens>, T> {
  const E4M3Params& e;

  __device__ int row_of(int half) const {
    return this->first_column + (half == 0 ? 0 : this->swiglu ? this->args.n : kRows / 2);
  }

  // The producer.

  __device__ void begin_copies() const {
    for (int stage = 0; stage < this->p.stages; ++stage) {
      barrier_init(this->barrier(kWFull, stage), 1);
      barrier_init(this->barrier(kXFull, stage), 1);
      barrier_init(this->barrier(kEmpty, stage), this->p.consumers / 32);
    }
    barrier_init(this->barrier(kRingsFree), this->p.split);
    barrier_init(this->barrier(kSumsFull), 1);
    fence_barrier_init();
    for (int chunk = 0; chunk < min(this->p.stages, this->num_chunks); ++chunk)
      fetch_w(chunk, chunk);
    prefetch_tensor_map(this->p.x);
    if (this->p.split > 1)
      barrier_arrive_expect(this->barrier(kSumsFull),
                            static_cast<uint32_t>(this->layout.sums_bytes()));
  }
  __device__ void fetch_w(int chunk, int stage) const {
    const uint32_t there = this->barrier(kWFull, stage), to = this->shared + this->layout.w(stage);
    const int column = (this->first_chunk + chunk) * kE4M3Chunk;
    barrier_arrive_expect(there, kValueBytes);
    box_copy(to, this->p.w, column, row_of(0), there);
    box_copy(to + kValueBytes / 2, this->p.w, column, row_of(1), there);
  }
  __device__ void copy() const {
    this->for_chunks([&](int chunk, int stage, uint32_t parity) {
      if (chunk >= this->p.stages) {
        barrier_wait(this->barrier(kEmpty, stage), parity ^ 1);
        fetch_w(chunk, stage);
      }
      const uint32_t there = this->barrier(kXFull, stage);
      const int at = this->first_chunk + chunk;
      barrier_arrive_expect(there, static_cast<uint32_t>(kTokens * kE4M3Chunk + e.scale_bytes));
      box_copy(this->shared + this->layout.x(stage), this->p.x, at * kE4M3Chunk, 0, there);
      bulk_copy(this->shared + this->layout.scales(stage), e.x_scales + at * e.chunk_stride,
                static_cast<uint32_t>(e.scale_bytes), there);
    });
  }

  // The consumers.

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  /// The scale of a row of the thread block in a chunk.
  __device__ float w_scale(int row, int chunk) const {
    const int at = row_of(row / (kRows / 2)) + row % (kRows / 2);
    const int column = (this->first_chunk + chunk) * kE4M3Chunk;
    return __uint_as_float(__ldg(e.w.scales + int64_t{at >> e.w.row_shift} * e.w.row_stride +
                                 int64_t{column >> e.w.group_shift} * e.w.group_stride));
  }
  __device__ void multiply_all(int thread) const {
    float sums[kTokens / 2] = {}, part[kTokens / 2];
    const int lane = thread % 32, row = thread / 32 * 16 + lane / 4;
    float next[2] = {w_scale(row, 0), w_scale(row + 8, 0)};
    this->for_chunks([&](int chunk, int stage, uint32_t parity) {
      const float scale[2] = {next[0], next[1]};
      if (chunk + 1 < this->num_chunks)
        next[0] = w_scale(row, chunk + 1), next[1] = w_scale(row + 8, chunk + 1);
      barrier_wait(this->barrier(kWFull, stage), parity);
      barrier_wait(this->barrier(kXFull, stage), parity);
      const uint32_t w = this->shared + this->layout.w(stage) + thread / 128 * 64 * kE4M3Chunk;
      const uint32_t x = this->shared + this->layout.x(stage);
      wgmma_fence();
#pragma unroll
      for (int i = 0; i < kE4M3Chunk / 32; ++i)
        multiply(part, tile_descriptor(w + i * 32, 1024, 0), tile_descriptor(x + i * 32, 1024, 0),
                 i > 0);
      wgmma_commit();
      wgmma_wait<0>();
      pin(part);
      const uint32_t scales = this->shared + this->layout.scales(stage) + lane % 4 * 8;
#pragma unroll
      for (int j = 0; j < kTokens / 8; ++j) {
        float of[2];  // the two tokens
        asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];"
                     : "=f"(of[0]), "=f"(of[1])
                     : "r"(scales + j * 32)
                     : "memory");
#pragma unroll
        for (int i = 0; i < 4; ++i) sums[4 * j + i] += part[4 * j + i] * (scale[i / 2] * of[i % 2]);
      }
      __syncwarp();
      if (chunk + this->p.stages < this->num_chunks && lane == 0)
        barrier_arrive(this->barrier(kEmpty, stage));
    });
    this->store_sums(sums, thread);
  }
#endif
};

// -- kernel

template <int kTokens, class T>
__global__ void __launch_bounds__(kThreads, 2)
    e4m3_swap_ab_kernel(const __grid_constant__ Params p, const E4M3Params e) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ __align__(1024) unsigned char memory[];
  const E4M3Block<kTokens, T> block{{.p = p, .shared = shared_address(memory)}, e};
  const int thread = threadIdx.x;
  const int producer = thread - p.consumers;  // negative in consumer warps; thread 0 copies
  if (producer == 0) block.begin_copies();
  __syncwarp();
  cluster_sync_relaxed();  // all thread blocks have initialised their barriers
  if (p.early) launch_dependents();
  wait_for_previous_kernel();
  if (!p.early) launch_dependents();

  if (producer < 0) block.multiply_all(thread);
  else if (producer == 0) block.copy();
  __syncwarp();
  fence_async_proxy();
  __syncthreads();
  if (thread < p.split) block.send_sums(thread);
  __syncwarp();
  block.finish();
  __syncwarp();
  cluster_sync_relaxed();  // no copy reads this thread block's sums any more
#endif
}

// -- launcher

template <int kTokens, class T>
void run(Launch where, const GemmArgs& args, const QuantizedWeight& w,
         const QuantizedActivations& x) {
  using Layout = E4M3Layout<kTokens>;
  const int num_chunks = args.k / kE4M3Chunk;
  const int split = find_byte_split(where, w.n / kRows, num_chunks);
  const int stages = std::min((num_chunks + split - 1) / split, kByteRing / Layout::kStageBytes);
  const Params params = {
      .w = byte_map(w.values, w.n, w.row_bytes(), kRows / 2, kE4M3Chunk, /*swizzles=*/true),
      .x = byte_map(x.values, args.num_tokens, x.row_bytes, kTokens, kE4M3Chunk, /*swizzles=*/true),
      .args = args,
      .norm = {},
      .rows = kRows,
      .split = split,
      .stages = stages,
      .num_chunks = num_chunks,
      .consumers = kRows / 64 * 128,
      .early = num_chunks > stages * split,
      .rope = RopeParams({}, {}, {})};
  const E4M3Params scales = {.w = w,
                             .x_scales = x.scales,
                             .chunk_stride = x.has_chunks ? x.scale_stride : 0,
                             .scale_bytes = std::min(kTokens, x.scale_stride) * 4};
  constexpr auto kernel = e4m3_swap_ab_kernel<kTokens, T>;
  allow_shared_memory<kernel>();
  launch(ClusterLaunch{where, split}, kernel, dim3(static_cast<unsigned>(w.n / kRows * split)),
         kThreads, static_cast<size_t>(Layout(kRows, stages).bytes()), params, scales);
}

}  // namespace

bool supports_e4m3_swap_ab(const GemmArgs& args, const QuantizedWeight& w) {
  return w.format == QuantizedFormat::kE4M3 && !args.float_out &&
         args.num_tokens <= kSwapAbTokens && w.n % kRows == 0 && args.k % kE4M3Chunk == 0;
}

void e4m3_swap_ab_gemm(Launch where, const GemmArgs& args, const QuantizedWeight& w,
                       const QuantizedActivations& x, DType dtype) {
  check_args(supports_e4m3_swap_ab(args, w), "e4m3_swap_ab_gemm: a shape that it does not support");
  with_16bit_type(dtype, [&](auto type) {
    using T = decltype(type);
    if (args.num_tokens <= 32) run<32, T>(where, args, w, x);
    else run<kSwapAbTokens, T>(where, args, w, x);
  });
}

}  // namespace nanovllm::cuda
