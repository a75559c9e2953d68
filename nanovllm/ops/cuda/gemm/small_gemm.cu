#include <cmath>

#include "nanovllm/ops/cuda/device/mma.cuh"
#include "nanovllm/ops/cuda/elementwise/row_ops.cuh"
#include "nanovllm/ops/cuda/gemm/gemm_args.h"

// GEMMs of up to 16 tokens. They are bound by reading the weights once and by the latency from one
// kernel to the next. So a thread block is small and prefetches most of its weights into shared
// memory before the previous kernel has ended (programmatic dependent launch). It leaves registers
// free, so that thread blocks of the next kernel can start and do the same. Each warp multiplies
// every eighth chunk of k and reads its part of x into registers once; in the end the warps' sums
// are added.
//
// A lane copies into shared memory exactly those pieces of w that it will feed to the tensor cores
// itself, so no other thread waits for them. This is possible because the order of k inside a GEMM
// is free: a piece is 16 contiguous bytes of one row. Of each chunk of k, lane 4 q + p takes
// elements 8 p to 8 p + 7 and 32 + 8 p to 32 + 8 p + 7 of row q of 8, and of token q.
namespace nanovllm::cuda {
namespace {

// -- layout

constexpr int kWarps = 8, kThreads = kWarps * 32;
constexpr int kChunk = 64;            // of k
constexpr int kPieceBytes = 32 * 16;  // 16 bytes for each lane of a warp

/// What the 16 rows of w are that one matrix instruction multiplies.
enum class Tile {
  kWhole,   // 16 columns of out
  kSwiglu,  // the gates of 8 columns, then their ups
};

/// Word i of four, where i becomes a constant when loops are unrolled.
__device__ inline uint32_t word(const uint4& v, int i) {
  return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w;
}

// -- kernel

/// kTokenTiles: tiles of 8 tokens. kTiles: tiles of w in a thread block. kStages: chunks of w in a
/// warp's ring in shared memory. kXStages: chunks of x in a warp's registers.
template <class T, Tile kTile, bool kNorm, int kTokenTiles, int kTiles, int kStages, int kXStages>
__global__ void __launch_bounds__(kThreads, 2) small_gemm_kernel(const GemmArgs p) {
  constexpr int kTokens = kTokenTiles * 8, kColumns = kTile == Tile::kWhole ? 16 : 8;
  constexpr int kPitch = 20;  // floats from one token's sums to the next one's: no bank conflicts
  constexpr int kStageBytes = kTiles * 4 * kPieceBytes;
  static_assert(kTiles * kTokens * kPitch * 4 <= kStages * kStageBytes,
                "the sums need more memory than the rings");
  extern __shared__ __align__(128) unsigned char shared[];
  __shared__ float squares_of[kWarps][kTokens];
  float* const norm = reinterpret_cast<float*>(shared + kWarps * kStages * kStageBytes);  // [k]
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, quad = lane / 4, pair = lane % 4;
  const int num_chunks = p.k / kChunk;
  const int first_column = blockIdx.x * kTiles * kColumns;
  unsigned char* const ring = shared + warp * kStages * kStageBytes;
  const uint32_t mine = shared_address(ring) + lane * 16;

  const auto fetch = [&](int stage, int chunk) {
    if (chunk < num_chunks) {
      const T* const from = static_cast<const T*>(p.w) + chunk * kChunk + pair * 8;
#pragma unroll
      for (int r = 0; r < kTiles; ++r)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          // A tile behind the last column repeats the last tile, and its sums are not stored.
          const int64_t row = min(first_column + r * kColumns, p.n - kColumns) + quad +
                              int64_t{half} * (kTile == Tile::kSwiglu ? p.n : 8);
#pragma unroll
          for (int i = 0; i < 2; ++i)
            async_copy16_of_128(mine + stage * kStageBytes + ((r * 2 + half) * 2 + i) * kPieceBytes,
                                from + row * p.k + i * 32);
        }
    }
    commit_async_copies();
  };
  if constexpr (kNorm)
    for (int i = threadIdx.x; i < p.k / 4; i += kThreads)
      async_copy16(shared_address(norm + i * 4), p.norm + i * 4);
  commit_async_copies();
#pragma unroll
  for (int i = 0; i < kStages; ++i) fetch(i, warp + i * kWarps);
  // If all weights fit the rings, the next kernel may start, and load its weights, only when the
  // previous kernel has ended, so that its loads do not delay this kernel's x. If this kernel loads
  // more weights later, the next kernel may start at once.
  const bool is_long = num_chunks > kStages * kWarps;
  if (is_long) launch_dependents();
  wait_for_previous_kernel();
  if (!is_long) launch_dependents();

  uint4 x[kXStages][kTokenTiles][2];
  const T* const x_row = static_cast<const T*>(p.x) + int64_t{quad} * p.k + pair * 8;
  const auto fetch_x = [&](uint4(&to)[kTokenTiles][2], int chunk) {
#pragma unroll
    for (int t = 0; t < kTokenTiles; ++t)
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        to[t][i] = make_uint4(0, 0, 0, 0);
        if (t * 8 + quad < p.num_tokens && chunk < num_chunks)
          to[t][i] = *reinterpret_cast<const uint4*>(x_row + int64_t{t} * 8 * p.k + chunk * kChunk +
                                                     i * 32);
      }
  };
#pragma unroll
  for (int i = 0; i < kXStages; ++i) fetch_x(x[i], warp + i * kWarps);
  // A thread's outputs. With kAdd their old values are loaded together with x.
  constexpr int kBlockColumns = kTiles * kColumns;
  constexpr int kOutputs = (kTokens * kBlockColumns + kThreads - 1) / kThreads;
  const auto is_output = [&](int at) {
    return at < p.num_tokens * kBlockColumns && first_column + at % kBlockColumns < p.n;
  };
  const auto out_at = [&](int at) {
    return static_cast<T*>(p.out) + int64_t{at / kBlockColumns} * p.n + first_column +
           at % kBlockColumns;
  };
  float old[kOutputs] = {};
  if constexpr (!kNorm) {
#pragma unroll
    for (int i = 0; i < kOutputs; ++i) {
      const int at = threadIdx.x + i * kThreads;
      if (p.epilogue == Epilogue::kAdd && is_output(at)) old[i] = to_float(*out_at(at));
    }
  }
  float scale[kTokenTiles];
  const float inverse_k = __fdividef(1, static_cast<float>(p.k));
  const auto elements = [](const uint4& v) { return bits_as<Vec<T, 8>>(v); };
  if constexpr (kNorm) {
#pragma unroll
    for (int t = 0; t < kTokenTiles; ++t) scale[t] = 0;
#pragma unroll
    for (int i = 0; i < kXStages; ++i)
#pragma unroll
      for (int t = 0; t < kTokenTiles; ++t)
        scale[t] = add_squares(elements(x[i][t][1]), add_squares(elements(x[i][t][0]), scale[t]));
    for (int chunk = warp + kXStages * kWarps; chunk < num_chunks; chunk += kWarps) {
      uint4 more[kTokenTiles][2];
      fetch_x(more, chunk);
#pragma unroll
      for (int t = 0; t < kTokenTiles; ++t)
        scale[t] = add_squares(elements(more[t][1]), add_squares(elements(more[t][0]), scale[t]));
    }
#pragma unroll
    for (int t = 0; t < kTokenTiles; ++t) {
      scale[t] = quad_reduce(scale[t], Sum());
      if (pair == 0) squares_of[warp][t * 8 + quad] = scale[t];
    }
    wait_async_copies<kStages>();  // the norm's weights
    __syncthreads();
#pragma unroll
    for (int t = 0; t < kTokenTiles; ++t) {
      float sum = 0;
#pragma unroll
      for (int w = 0; w < kWarps; ++w) sum += squares_of[w][t * 8 + quad];
      scale[t] = rsqrtf(sum * inverse_k + p.eps);
    }
  }

  float acc[kTiles][kTokenTiles][4] = {};
  // A multiple of both numbers of stages, so that the stage of each unrolled step is a constant.
  constexpr int kSteps = kStages % kXStages == 0 ? kStages : kStages * kXStages;
  for (int base = warp; base < num_chunks; base += kSteps * kWarps) {
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      const int chunk = base + step * kWarps;
      if (chunk >= num_chunks) break;
      const int stage = step % kStages;
      uint4(&b)[kTokenTiles][2] = x[step % kXStages];
      if constexpr (kNorm) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const float* const at = norm + chunk * kChunk + pair * 8 + i * 32;
          const auto weight = load<8>(at);
#pragma unroll
          for (int t = 0; t < kTokenTiles; ++t)
            b[t][i] = bits_as<uint4>(normed(elements(b[t][i]), scale[t], weight));
        }
      }
      wait_async_copies<kStages - 1>();
#pragma unroll
      for (int r = 0; r < kTiles; ++r)
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const uint32_t from = mine + stage * kStageBytes + (r * 4 + i) * kPieceBytes;
          const uint4 low = load_shared(from), high = load_shared(from + 2 * kPieceBytes);
#pragma unroll
          for (int j = 0; j < 4; j += 2)
#pragma unroll
            for (int t = 0; t < kTokenTiles; ++t)
              mma_16x8x16<T>(acc[r][t],
                             {word(low, j), word(high, j), word(low, j + 1), word(high, j + 1)},
                             word(b[t][i], j), word(b[t][i], j + 1));
        }
      fetch(stage, chunk + kStages * kWarps);
      fetch_x(b, chunk + kXStages * kWarps);
    }
  }

  // Each warp writes its sums to the memory of its ring.
  wait_async_copies<0>();
  __syncwarp();
  float* const sums = reinterpret_cast<float*>(ring);
#pragma unroll
  for (int r = 0; r < kTiles; ++r)
#pragma unroll
    for (int t = 0; t < kTokenTiles; ++t)
#pragma unroll
      for (int i = 0; i < 4; ++i)
        sums[(r * kTokens + t * 8 + 2 * pair + i % 2) * kPitch + quad + i / 2 * 8] = acc[r][t][i];
  __syncthreads();
#pragma unroll
  for (int i = 0; i < kOutputs; ++i) {
    const int at = threadIdx.x + i * kThreads;
    if (!is_output(at)) continue;
    const int token = at / kBlockColumns, column = at % kBlockColumns;
    const float* from = reinterpret_cast<const float*>(shared) +
                        (column / kColumns * kTokens + token) * kPitch + column % kColumns;
    float y = 0, up = 0;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) {
      y += from[0];
      if constexpr (kTile == Tile::kSwiglu) up += from[8];
      from += kStages * kStageBytes / 4;
    }
    if constexpr (kTile == Tile::kSwiglu) {
      *out_at(at) = swiglu_of_sums<T>(y, up);
    } else {
      if (p.bias != nullptr) y += p.bias[first_column + column];
      *out_at(at) = from_float<T>(old[i] + y);
    }
  }
}

// -- launcher

template <class T, Tile kTile, bool kNorm, int kTokenTiles, int kTiles, int kStages, int kXStages>
void run(Launch where, const GemmArgs& args) {
  constexpr int kColumns = kTile == Tile::kWhole ? 16 : 8;
  constexpr auto kernel =
      small_gemm_kernel<T, kTile, kNorm, kTokenTiles, kTiles, kStages, kXStages>;
  const size_t bytes = size_t{kWarps} * kStages * kTiles * 4 * kPieceBytes +
                       (kNorm ? static_cast<size_t>(args.k) * 4 : 0);
  allow_shared_memory<kernel>();
  launch(where, kernel, blocks_for(args.n, kTiles * kColumns), kThreads, bytes, args);
}

/// Calls one of the kernels. What counts is how many bytes of weights are in flight: a ring of 64
/// or 96 KB for each of up to two thread blocks on a multiprocessor. Every thread block computes
/// the norm anew, so it should have many columns if that takes long.
template <class T, int kTokenTiles>
void run_shape(Launch where, const GemmArgs& args) {
  const auto fits = [&](int columns, int residents) {
    return (args.n + columns - 1) / columns <= where.num_sms * residents;
  };
  // Two rings of 96 KB and two copies of the norm's weights have room on a multiprocessor.
  const bool is_deep = args.k > 4096;
  if (args.epilogue == Epilogue::kSwiglu) {
    // Thread blocks that run at the same time form a wave; the last one may be small.
    const auto waves = [&](int columns) {
      return static_cast<double>((args.n + columns - 1) / columns) / (2 * where.num_sms);
    };
    const auto waste = [&](int columns) { return std::ceil(waves(columns)) / waves(columns); };
    if (is_deep && args.num_tokens <= 2)
      run<T, Tile::kSwiglu, true, kTokenTiles, 1, 4, 2>(where, args);
    else if (waves(24) > 1 && waste(16) < 0.8 * waste(24))
      run<T, Tile::kSwiglu, true, kTokenTiles, 2, 3, 3>(where, args);
    else run<T, Tile::kSwiglu, true, kTokenTiles, 3, 2, 2>(where, args);
  } else if (args.norm != nullptr) {
    if (!fits(32, 2)) run<T, Tile::kWhole, true, kTokenTiles, 3, 2, 2>(where, args);
    else if (is_deep) run<T, Tile::kWhole, true, kTokenTiles, 2, 2, 2>(where, args);
    else run<T, Tile::kWhole, true, kTokenTiles, 2, 3, 3>(where, args);
  } else {
    if (fits(16, 2)) run<T, Tile::kWhole, false, kTokenTiles, 1, 6, 6 / kTokenTiles>(where, args);
    else if (fits(16, 3))
      run<T, Tile::kWhole, false, kTokenTiles, 1, 4, 4 / kTokenTiles>(where, args);
    else run<T, Tile::kWhole, false, kTokenTiles, 2, 3, 3>(where, args);
  }
}

constexpr int64_t kMaxNormK = 8192;  // the norm's weights are in shared memory
// With more columns (logits) cuBLASLt runs near the speed of the memory, and so it does with more
// weights than kMaxWeights for more than 8 tokens.
constexpr int64_t kMaxColumns = 65536, kMaxWeights = 20'000'000;

}  // namespace

bool prefers_small_gemm(const GemmArgs& args, DType dtype) {
  const bool is_swiglu = args.epilogue == Epilogue::kSwiglu;
  const int64_t rows = is_swiglu ? int64_t{2} * args.n : args.n;
  return args.num_tokens <= kFewTokens && (args.num_tokens <= 8 || rows * args.k <= kMaxWeights) &&
         args.n % 16 == 0 && args.n <= kMaxColumns && args.k % kChunk == 0 &&
         (args.k <= kMaxNormK || args.epilogue == Epilogue::kAdd) &&
         (!is_swiglu || args.norm != nullptr) && dtype_size(dtype) == 2;
}

void small_gemm(Launch where, const GemmArgs& args, DType dtype) {
  check_args(prefers_small_gemm(args, dtype),
             "small_gemm: a shape or dtype that it does not compute");
  with_16bit_type(dtype, [&](auto type) {
    using T = decltype(type);
    if (args.num_tokens <= 8) run_shape<T, 1>(where, args);
    else run_shape<T, 2>(where, args);
  });
}

}  // namespace nanovllm::cuda
