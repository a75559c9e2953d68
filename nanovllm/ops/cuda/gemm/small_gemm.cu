#include "nanovllm/ops/cuda/gemm/gemm_args.h"

#include "nanovllm/ops/cuda/gemm/small_gemm.cuh"

// GEMMs of up to 16 tokens, bound by reading the weights once and by the latency from one kernel to
// the next. So a thread block is small and prefetches most of its weights into shared memory before
// the previous kernel has ended (programmatic dependent launch). It leaves registers free, so that
// the thread blocks of the next kernel can start and do the same. The warps share out k, and each
// reads its part of x into registers once.
namespace nanovllm::cuda {
namespace {

// -- kernel

constexpr int kWarps = 8, kThreads = kWarps * 32;

/// What the 16 rows of w that one mma takes are.
enum class Tile {
  kWhole,   // 16 columns of out
  kHalf,    // 8, and zeros: twice the thread blocks where w has few rows
  kSwiglu,  // 8 columns: their gates, then their ups
};

/// kTokenTiles: tiles of 8 tokens. kTiles: tiles of w in a thread block. kDepth: chunks of w that a
/// warp has in its ring. kHeld: chunks of x that it has in registers.
template <class T, Tile kTile, bool kNorm, int kTokenTiles, int kTiles, int kDepth, int kHeld>
__global__ void __launch_bounds__(kThreads, 2) small_gemm_kernel(const GemmArgs p) {
  constexpr int kTokens = kTokenTiles * 8, kColumns = kTile == Tile::kWhole ? 16 : 8;
  constexpr int kHalves = kTile == Tile::kHalf ? 1 : 2;   // of a tile's rows
  constexpr int kPitch = kTile == Tile::kHalf ? 12 : 20;  // without bank conflicts
  constexpr int kSlotBytes = kTiles * kHalves * 2 * kPieceBytes;
  static_assert(kTiles * kTokens * kPitch * 4 <= kDepth * kSlotBytes, "sums lie where w lay");
  extern __shared__ __align__(128) unsigned char shared[];
  __shared__ float squares_of[kWarps][kTokens];
  float* const norm = reinterpret_cast<float*>(shared + kWarps * kDepth * kSlotBytes);  // [k]
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, quad = lane / 4, pair = lane % 4;
  const int num_chunks = p.k / kChunk;
  const int first_column = blockIdx.x * kTiles * kColumns;
  unsigned char* const ring = shared + warp * kDepth * kSlotBytes;
  const uint32_t mine = shared_address(ring) + lane * 16;

  const auto fetch = [&](int slot, int chunk) {
    if (chunk < num_chunks) {
      const T* const from = static_cast<const T*>(p.w) + chunk * kChunk + pair * 8;
#pragma unroll
      for (int r = 0; r < kTiles; ++r)
#pragma unroll
        for (int half = 0; half < kHalves; ++half) {
          const int64_t row = first_column + r * kColumns + quad +
                              int64_t{half} * (kTile == Tile::kSwiglu ? p.n : 8);
#pragma unroll
          for (int i = 0; i < 2; ++i)
            copy_weights(mine + slot * kSlotBytes + ((r * kHalves + half) * 2 + i) * kPieceBytes,
                         from + row * p.k + i * 32);
        }
    }
    commit_copies();
  };
  if constexpr (kNorm)
    for (int i = threadIdx.x; i < p.k / 4; i += kThreads)
      hopper::async_copy16(shared_address(norm + i * 4), p.norm + i * 4);
  commit_copies();
#pragma unroll
  for (int i = 0; i < kDepth; ++i) fetch(i, warp + i * kWarps);
  // A kernel whose weights all fit its rings lets the next kernel start, and fetch weights, only
  // once the previous one has ended: its own x then arrives sooner. One that goes on streaming
  // weights lets the next kernel's requests queue behind its own at once.
  const bool is_long = num_chunks > kDepth * kWarps;
  if (is_long) launch_dependents();
  wait_for_previous_kernel();
  if (!is_long) launch_dependents();

  uint4 x[kHeld][kTokenTiles][2];
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
  for (int i = 0; i < kHeld; ++i) fetch_x(x[i], warp + i * kWarps);
  // A thread's outputs. The old values that it adds to are loaded along with x.
  constexpr int kBlockColumns = kTiles * kColumns;
  constexpr int kOutputs = (kTokens * kBlockColumns + kThreads - 1) / kThreads;
  const auto out_at = [&](int at) {
    return static_cast<T*>(p.out) + int64_t{at / kBlockColumns} * p.n + first_column +
           at % kBlockColumns;
  };
  float old[kOutputs] = {};
  if constexpr (!kNorm) {
#pragma unroll
    for (int i = 0; i < kOutputs; ++i) {
      const int at = threadIdx.x + i * kThreads;
      if (p.epilogue == Epilogue::kAdd && at < p.num_tokens * kBlockColumns)
        old[i] = to_float(*out_at(at));
    }
  }
  float scale[kTokenTiles];
  const float inverse_k = __fdividef(1, static_cast<float>(p.k));
  const auto elements = [](const uint4& v) { return bits_as<Vec<T, 8>>(v); };
  if constexpr (kNorm) {
#pragma unroll
    for (int t = 0; t < kTokenTiles; ++t) scale[t] = 0;
#pragma unroll
    for (int i = 0; i < kHeld; ++i)
#pragma unroll
      for (int t = 0; t < kTokenTiles; ++t)
        scale[t] = add_squares(elements(x[i][t][1]), add_squares(elements(x[i][t][0]), scale[t]));
    for (int chunk = warp + kHeld * kWarps; chunk < num_chunks; chunk += kWarps) {
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
    wait_copies<kDepth>();  // the norm's weights
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
  // A multiple of both rings, so that the places in them are constants for the compiler.
  constexpr int kSteps = kDepth % kHeld == 0 ? kDepth : kDepth * kHeld;
  for (int base = warp; base < num_chunks; base += kSteps * kWarps) {
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      const int chunk = base + step * kWarps;
      if (chunk >= num_chunks) break;
      const int slot = step % kDepth;
      uint4(&b)[kTokenTiles][2] = x[step % kHeld];
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
      wait_copies<kDepth - 1>();
#pragma unroll
      for (int r = 0; r < kTiles; ++r)
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const uint32_t from = mine + slot * kSlotBytes + (r * kHalves * 2 + i) * kPieceBytes;
          const uint4 low = load_shared(from);
          uint4 high = make_uint4(0, 0, 0, 0);
          if constexpr (kHalves == 2) high = load_shared(from + 2 * kPieceBytes);
#pragma unroll
          for (int j = 0; j < 4; j += 2)
#pragma unroll
            for (int t = 0; t < kTokenTiles; ++t)
              mma_16x8x16<T>(acc[r][t],
                             {word(low, j), word(high, j), word(low, j + 1), word(high, j + 1)},
                             word(b[t][i], j), word(b[t][i], j + 1));
        }
      fetch(slot, chunk + kDepth * kWarps);
      fetch_x(b, chunk + kHeld * kWarps);
    }
  }

  // Each warp writes its sums where its weights were.
  wait_copies<0>();
  __syncwarp();
  float* const sums = reinterpret_cast<float*>(ring);
#pragma unroll
  for (int r = 0; r < kTiles; ++r)
#pragma unroll
    for (int t = 0; t < kTokenTiles; ++t)
#pragma unroll
      for (int i = 0; i < kHalves * 2; ++i)
        sums[(r * kTokens + t * 8 + 2 * pair + i % 2) * kPitch + quad + i / 2 * 8] = acc[r][t][i];
  __syncthreads();
#pragma unroll
  for (int i = 0; i < kOutputs; ++i) {
    const int at = threadIdx.x + i * kThreads;
    if (at >= p.num_tokens * kBlockColumns) break;
    const int token = at / kBlockColumns, column = at % kBlockColumns;
    const float* from = reinterpret_cast<const float*>(shared) +
                        (column / kColumns * kTokens + token) * kPitch + column % kColumns;
    float y = 0, up = 0;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) {
      y += from[0];
      if constexpr (kTile == Tile::kSwiglu) up += from[8];
      from += kDepth * kSlotBytes / 4;
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

template <class T, Tile kTile, bool kNorm, int kTokenTiles, int kTiles, int kDepth, int kHeld>
void run(Launch where, const GemmArgs& args) {
  constexpr int kColumns = kTile == Tile::kWhole ? 16 : 8;
  constexpr int kHalves = kTile == Tile::kHalf ? 1 : 2;
  constexpr auto kernel = small_gemm_kernel<T, kTile, kNorm, kTokenTiles, kTiles, kDepth, kHeld>;
  const size_t bytes = size_t{kWarps} * kDepth * kTiles * kHalves * 2 * kPieceBytes +
                       (kNorm ? static_cast<size_t>(args.k) * 4 : 0);
  allow_shared_memory<kernel>();
  launch(where, kernel, dim3(static_cast<unsigned>(args.n / (kTiles * kColumns))), kThreads, bytes,
         args);
}

template <class T, int kTokenTiles>
void run_shape(Launch where, const GemmArgs& args) {
  // As many columns for a thread block as still give three quarters of the multiprocessors one.
  const auto fits = [&](int columns) {
    return args.n % columns == 0 && args.n / columns >= where.num_sms * 3 / 4;
  };
  if (args.epilogue == Epilogue::kSwiglu) {
    if (fits(24)) run<T, Tile::kSwiglu, true, kTokenTiles, 3, 2, 2>(where, args);
    else run<T, Tile::kSwiglu, true, kTokenTiles, 1, 4, 2>(where, args);
  } else if (args.norm != nullptr) {
    if (fits(48)) run<T, Tile::kWhole, true, kTokenTiles, 3, 2, 2>(where, args);
    else if (fits(32)) run<T, Tile::kWhole, true, kTokenTiles, 2, 2, 2>(where, args);
    else run<T, Tile::kWhole, true, kTokenTiles, 1, 4, 2>(where, args);
  } else {
    if (fits(32)) run<T, Tile::kWhole, false, kTokenTiles, 2, 3, 3>(where, args);
    else if (fits(16)) run<T, Tile::kWhole, false, kTokenTiles, 1, 4, 4 / kTokenTiles>(where, args);
    else run<T, Tile::kHalf, false, kTokenTiles, 1, 6, 6 / kTokenTiles>(where, args);
  }
}

constexpr int64_t kMaxNormK = 8192;  // the norm's weights are in shared memory

}  // namespace

bool is_small_gemm(const GemmArgs& args, DType dtype) {
  // With larger n (logits) cuBLASLt runs near the speed of the memory, and so it does with large
  // weights and more than 8 tokens.
  const bool is_swiglu = args.epilogue == Epilogue::kSwiglu;
  const int64_t num_weights = int64_t{args.k} * (is_swiglu ? 2 * args.n : args.n);
  return args.num_tokens <= kFewTokens && (args.num_tokens <= 8 || num_weights <= 20'000'000) &&
         args.n % 16 == 0 && args.n <= 65536 && args.k % kChunk == 0 &&
         (args.k <= kMaxNormK || args.epilogue == Epilogue::kAdd) &&
         (!is_swiglu || args.norm != nullptr) && dtype_size(dtype) == 2;
}

void small_gemm(Launch where, const GemmArgs& args, DType dtype) {
  check_args(is_small_gemm(args, dtype), "small_gemm: wrong shapes, or SwiGLU without a norm");
  const auto with_type = [&]<class T>() {
    if (args.num_tokens <= 8) run_shape<T, 1>(where, args);
    else run_shape<T, 2>(where, args);
  };
  if (dtype == DType::kBF16) with_type.template operator()<Bf16>();
  else with_type.template operator()<F16>();
}

}  // namespace nanovllm::cuda
