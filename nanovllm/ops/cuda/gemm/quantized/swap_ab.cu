#include <algorithm>

#include "nanovllm/ops/cuda/gemm/quantized/byte_map.cuh"
#include "nanovllm/ops/cuda/gemm/quantized/quantized_gemm.h"
#include "nanovllm/ops/cuda/gemm/quantized/weight_formats.cuh"
#include "nanovllm/ops/cuda/gemm/swap_ab_block.cuh"

// swap_ab_gemm.cu for integer weights. Rows of w are wgmma's M, and its operand A comes from
// registers: a consumer reads 16 bytes of values from shared memory, which are in the order that it
// needs (quantized_place()), and turns them into 16-bit floats, scaled, while the tensor cores
// multiply the ones before. What comes after the sums is the same.
namespace nanovllm::cuda {
namespace {
using namespace swap_ab;

// -- layout

constexpr int kQuantizedRows = 128;        // of w in a thread block
constexpr int kXBytes = 2 * kBoxRowBytes;  // of a token in a chunk: two boxes

/// A stage has the values, the words of the scales [groups, rows], and x as two boxes.
template <class Format, int kTokens>
struct QuantizedLayout {
  static constexpr int kValueBytes = kQuantizedRows * Format::kPieces * 64;
  static constexpr int kScaleGroups = Format::kFine ? Format::kGroups : 1;
  static constexpr int kScaleBytes = kQuantizedRows * 4 * kScaleGroups;
  static constexpr int kXAt = kValueBytes + (kScaleBytes + 1023) / 1024 * 1024;
  static constexpr int kStageBytes = kXAt + kTokens * kXBytes;
  int rows, stages, ring_bytes;
  __host__ __device__ QuantizedLayout(int rows_, int stages_)
      : rows(rows_), stages(stages_), ring_bytes(max(stages_ * kStageBytes, 2 * sums_bytes())) {}
  __host__ __device__ int pitch() const { return rows + 4; }
  __host__ __device__ int sums_bytes() const { return kTokens * pitch() * 4; }
  __host__ __device__ int w(int stage) const { return stage * kStageBytes; }
  __host__ __device__ int scales(int stage) const { return w(stage) + kValueBytes; }
  __host__ __device__ int x(int stage) const { return w(stage) + kXAt; }
  __host__ __device__ int barrier(Kind kind, int stage) const {
    const int index =
        kind < kRingsFree ? kind * stages + stage : kRingsFree * stages + kind - kRingsFree;
    return ring_bytes + index * 8;
  }
  __host__ __device__ int bytes() const { return barrier(kSumsFull, 0) + 8; }
};

// -- d += a b by wgmma, with A from registers and B K-major; d = a b if `adds` is false

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define TEN(x, t) \
  x(t##0), x(t##1), x(t##2), x(t##3), x(t##4), x(t##5), x(t##6), x(t##7), x(t##8), x(t##9)
#define VALUE(i) "+f"(d[i])
#define MULTIPLY_32(type)                                                              \
  asm volatile(                                                                        \
      "{\n.reg .pred p;\nsetp.ne.b32 p, %21, 0;\n"                                     \
      "wgmma.mma_async.sync.aligned.m64n32k16.f32." type "." type                      \
      " {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15}, "      \
      "{%16, %17, %18, %19}, %20, p, 1, 1, 0;\n}\n"                                    \
      : TEN(VALUE, ), VALUE(10), VALUE(11), VALUE(12), VALUE(13), VALUE(14), VALUE(15) \
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(adds))
#define MULTIPLY_64(type)                                                                       \
  asm volatile(                                                                                 \
      "{\n.reg .pred p;\nsetp.ne.b32 p, %37, 0;\n"                                              \
      "wgmma.mma_async.sync.aligned.m64n64k16.f32." type "." type                               \
      " {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, " \
      "%19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "                      \
      "{%32, %33, %34, %35}, %36, p, 1, 1, 0;\n}\n"                                             \
      : TEN(VALUE, ), TEN(VALUE, 1), TEN(VALUE, 2), VALUE(30), VALUE(31)                        \
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(adds))
template <class T>
__device__ __forceinline__ void multiply_add(float (&d)[16], const uint32_t (&a)[4], uint64_t b,
                                             int adds) {
  if constexpr (std::is_same_v<T, F16>) MULTIPLY_32("f16");
  else MULTIPLY_32("bf16");
}
template <class T>
__device__ __forceinline__ void multiply_add(float (&d)[32], const uint32_t (&a)[4], uint64_t b,
                                             int adds) {
  if constexpr (std::is_same_v<T, F16>) MULTIPLY_64("f16");
  else MULTIPLY_64("bf16");
}
#undef MULTIPLY_64
#undef MULTIPLY_32
#undef TEN
#undef VALUE
#endif

// -- thread block

[[maybe_unused]] __device__ __forceinline__ uint32_t load_shared_word(uint32_t from) {
  uint32_t x;
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(x) : "r"(from) : "memory");
  return x;
}

template <class Format, int kTokens>
struct QuantizedBlock : Block<kTokens, QuantizedLayout<Format, kTokens>, typename Format::T> {
  using T = typename Format::T;
  using Layout = QuantizedLayout<Format, kTokens>;
  const QuantizedWeight& weight;

  /// The row of w that is row `row` of the thread block: with SwiGLU gates, then ups.
  __device__ int row_of(int half) const {
    const int size = kQuantizedRows / 2;
    return this->first_column + (half == 0 ? 0 : this->swiglu ? this->args.n : size);
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
    constexpr int kHalf = kQuantizedRows / 2, kRowBytes = Format::kPieces * 64;
    const uint32_t there = this->barrier(kWFull, stage);
    const int at = this->first_chunk + chunk;
    barrier_arrive_expect(there, Layout::kValueBytes + Layout::kScaleBytes);
    for (int half = 0; half < 2; ++half) {
      box_copy(this->shared + this->layout.w(stage) + half * kHalf * kRowBytes, this->p.w,
               at * kRowBytes, row_of(half), there);
      for (int group = 0; group < Layout::kScaleGroups; ++group) {
        const int column = at * Format::kChunk + group * (Format::kChunk / Layout::kScaleGroups);
        bulk_copy(
            this->shared + this->layout.scales(stage) + (group * kQuantizedRows + half * kHalf) * 4,
            weight.scales + int64_t{column >> weight.group_shift} * weight.group_stride +
                row_of(half),
            kHalf * 4, there);
      }
    }
  }
  __device__ void copy() const {
    this->for_chunks([&](int chunk, int stage, uint32_t parity) {
      if (chunk >= this->p.stages) {
        barrier_wait(this->barrier(kEmpty, stage), parity ^ 1);
        fetch_w(chunk, stage);
      }
      const uint32_t to = this->shared + this->layout.x(stage),
                     there = this->barrier(kXFull, stage);
      const int column = (this->first_chunk + chunk) * Format::kChunk;
      barrier_arrive_expect(there, kTokens * kXBytes);
      box_copy(to, this->p.x, column, 0, there);
      box_copy(to + kTokens * kBoxRowBytes, this->p.x, column + kBoxColumns, 0, there);
    });
  }

  // The consumers.

  /// The scaled values of half of a chunk as operands of four matrix instructions.
  template <int kHalf>
  __device__ void load_values(uint32_t (&a)[4][4], int stage, int thread) const {
    constexpr int kRowBytes = Format::kPieces * 64;
    const int lane = thread % 32, row = thread / 32 * 16 + lane / 4;
    const uint32_t from = this->shared + this->layout.w(stage) + row * kRowBytes + lane % 4 * 16 +
                          (Format::kPieces == 2 ? kHalf * 64 : 0);
    const uint4 low = load_shared(from), high = load_shared(from + 8 * kRowBytes);
    const uint32_t scales = this->shared + this->layout.scales(stage) + row * 4;
    uint32_t zeros[2], factors[2];
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      constexpr int kFirst = kHalf * 2;  // group
      if (j == 0 || Format::kFine) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const uint32_t scale_word = load_shared_word(
              scales + (Format::kFine ? (kFirst + j) * kQuantizedRows * 4 : 0) + i * 32);
          zeros[i] = Format::zero(scale_word);
          const float scale = Format::scale(weight, scale_word);
          factors[i] = pack<T>(scale, scale);
        }
      }
      uint32_t upper[4], lower[4];
      Format::unpack(low, kFirst + j, zeros[0], upper);
      Format::unpack(high, kFirst + j, zeros[1], lower);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        a[j * 2 + i / 2][i % 2 * 2] = multiply_pairs<T>(upper[i], factors[0]);
        a[j * 2 + i / 2][i % 2 * 2 + 1] = multiply_pairs<T>(lower[i], factors[1]);
      }
    }
  }
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  __device__ void multiply(int thread) const {
    float sums[kTokens / 2];
    uint32_t first[4][4], second[4][4];  // the halves of a chunk
    const auto multiply_half = [&](const uint32_t(&a)[4][4], int stage, int half, bool adds) {
      const uint32_t x = this->shared + this->layout.x(stage) + half * kTokens * kBoxRowBytes;
      wgmma_fence();
#pragma unroll
      for (int i = 0; i < 4; ++i)
        multiply_add<T>(sums, a[i], tile_descriptor(x + i * 32, 1024, 0), adds || i > 0);
      wgmma_commit();
    };
    barrier_wait(this->barrier(kWFull, 0), 0);
    load_values<0>(first, 0, thread);
    this->for_chunks([&](int chunk, int stage, uint32_t parity) {
      barrier_wait(this->barrier(kXFull, stage), parity);
      multiply_half(first, stage, 0, chunk > 0);
      load_values<1>(second, stage, thread);
      wgmma_wait<0>();
      multiply_half(second, stage, 1, true);
      if (chunk + 1 < this->num_chunks) {
        const bool wraps = stage + 1 == this->p.stages;
        const int next = wraps ? 0 : stage + 1;
        barrier_wait(this->barrier(kWFull, next), wraps ? parity ^ 1 : parity);
        load_values<0>(first, next, thread);
      }
      wgmma_wait<0>();
      if (chunk + this->p.stages < this->num_chunks && thread % 32 == 0)
        barrier_arrive(this->barrier(kEmpty, stage));
    });
    pin(sums);
    this->store_sums(sums, thread);
  }
#endif
};

// -- kernel

template <class Format, int kTokens>
__global__ void __launch_bounds__(kThreads, 2)
    quantized_swap_ab_kernel(const __grid_constant__ Params p, const QuantizedWeight weight) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ __align__(1024) unsigned char memory[];
  const QuantizedBlock<Format, kTokens> block{{.p = p, .shared = shared_address(memory)}, weight};
  const int thread = threadIdx.x;
  const int producer = thread - p.consumers;  // negative in consumer warps; thread 0 copies
  if (producer == 0) block.begin_copies();
  __syncwarp();
  cluster_sync_relaxed();  // all thread blocks have initialised their barriers
  if (p.early) launch_dependents();
  wait_for_previous_kernel();
  if (!p.early) launch_dependents();

  if (producer < 0) block.multiply(thread);
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

template <class Format, int kTokens>
void run(Launch where, const GemmArgs& args, const QuantizedWeight& w) {
  using Layout = QuantizedLayout<Format, kTokens>;
  const int num_chunks = args.k / Format::kChunk;
  const int split = find_byte_split(where, w.n / kQuantizedRows, num_chunks);
  const int stages = std::min((num_chunks + split - 1) / split, kByteRing / Layout::kStageBytes);
  const int row_bytes = static_cast<int>(w.row_bytes());
  const Params params = {
      .w = byte_map(w.values, w.n, row_bytes, kQuantizedRows / 2, Format::kPieces * 64,
                    /*swizzles=*/false),
      .x = tensor_map(args.x, args.num_tokens, args.k, kTokens),
      .args = args,
      .norm = {},
      .rows = kQuantizedRows,
      .split = split,
      .stages = stages,
      .num_chunks = num_chunks,
      .consumers = kQuantizedRows / 64 * 128,
      .early = num_chunks > stages * split,
      .rope = RopeParams({}, {}, {})};
  const int bytes = Layout(kQuantizedRows, stages).bytes();
  constexpr auto kernel = quantized_swap_ab_kernel<Format, kTokens>;
  allow_shared_memory<kernel>();
  launch(ClusterLaunch{where, split}, kernel,
         dim3(static_cast<unsigned>(w.n / kQuantizedRows * split)), kThreads,
         static_cast<size_t>(bytes), params, w);
}

}  // namespace

bool supports_quantized_swap_ab(const GemmArgs& args, const QuantizedWeight& w) {
  return w.format != QuantizedFormat::kE4M3 && !args.float_out && args.norm == nullptr &&
         args.num_tokens <= kSwapAbTokens && w.n % kQuantizedRows == 0 &&
         args.k % kQuantizedChunk == 0;
}

void quantized_swap_ab_gemm(Launch where, const GemmArgs& args, const QuantizedWeight& w,
                            DType dtype) {
  check_args(supports_quantized_swap_ab(args, w),
             "quantized_swap_ab_gemm: a shape that it does not support");
  with_16bit_type(dtype, [&](auto type) {
    with_quantized_format<decltype(type)>(w, [&](auto format) {
      using Format = decltype(format);
      if constexpr (!Format::kInOrder) {
        if (args.num_tokens <= 32) run<Format, 32>(where, args, w);
        else run<Format, kSwapAbTokens>(where, args, w);
      }
    });
  });
}

}  // namespace nanovllm::cuda
