#include "nanovllm/ops/cuda/mma.cuh"
#include "nanovllm/ops/cuda/small_matmul.h"

// Products of a few tokens, bound by the time to read the weights once. A block computes 16 rows of
// w for all tokens; its warps share out k and each reads its weights straight into the registers of
// the tensor cores' first operand: k's order inside a product is free, so a lane takes 16 bytes of
// a row at a time. The first weights are on their way before the kernel waits for the one before
// it.
namespace nanovllm::cuda {
namespace {

// -- kernel

constexpr int kChunk = 64;  // of k: a warp reads 128 bytes of each row

/// 16 bytes of weights, which are read once: past L1.
__device__ inline uint4 load_weights(const void* p) {
  uint4 v;
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(p));
  return v;
}
__device__ inline uint32_t word(const uint4& v, int i) {
  return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w;
}

/// Eight elements of a row times its scale and the norm's weights, rounded as rms_norm() does.
template <class T>
__device__ inline uint4 normed(const uint4& x, float scale, const float* norm) {
  const float4 a = *reinterpret_cast<const float4*>(norm);
  const float4 b = *reinterpret_cast<const float4*>(norm + 4);
  const Vec<T, 8> v = *reinterpret_cast<const Vec<T, 8>*>(&x);
  const auto at = [&](int i) { return to_float(v.x[i]) * scale; };
  return make_uint4(
      hopper::pack<T>(at(0) * a.x, at(1) * a.y), hopper::pack<T>(at(2) * a.z, at(3) * a.w),
      hopper::pack<T>(at(4) * b.x, at(5) * b.y), hopper::pack<T>(at(6) * b.z, at(7) * b.w));
}

/// kTokenTiles: of 8 tokens. kRowTiles: 2 for a gate and its up. kDepth: chunks on their way.
template <class T, int kWarps, int kTokenTiles, int kRowTiles, int kDepth>
__global__ void __launch_bounds__(kWarps * 32) small_matmul_kernel(const SmallMatmul p) {
  constexpr int kTokens = kTokenTiles * 8, kPitch = 20;  // a pitch without bank conflicts
  __shared__ float sums[kWarps][kRowTiles][kTokens][kPitch];
  __shared__ float scales[kTokens];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, quad = lane / 4, pair = lane % 4;
  const int num_chunks = p.k / kChunk;
  const T* const rows =
      static_cast<const T*>(p.w) + (int64_t{blockIdx.x} * 16 + quad) * p.k + pair * 8;
  uint4 a[kDepth][kRowTiles][4];  // rows quad and quad + 8, both halves of the chunk
  const auto fetch = [&](uint4(&to)[kRowTiles][4], int chunk) {
    if (chunk >= num_chunks) return;
#pragma unroll
    for (int r = 0; r < kRowTiles; ++r)
#pragma unroll
      for (int i = 0; i < 4; ++i)
        to[r][i] =
            load_weights(rows + (int64_t{r} * p.n + i / 2 * 8) * p.k + chunk * kChunk + i % 2 * 32);
  };
#pragma unroll
  for (int i = 0; i < kDepth; ++i) fetch(a[i], warp + i * kWarps);
  begin_kernel();

  const T* const x = static_cast<const T*>(p.x);
  if (p.norm != nullptr) {
    for (int token = warp; token < p.num_tokens; token += kWarps) {
      float squares = 0;
#pragma unroll 4
      for (int at = lane * 8; at < p.k; at += 256) {
        const Vec<T, 8> v = load<8>(x + int64_t{token} * p.k + at);
#pragma unroll
        for (int i = 0; i < 8; ++i) squares += to_float(v.x[i]) * to_float(v.x[i]);
      }
      squares = warp_sum(squares);
      if (lane == 0) scales[token] = rsqrtf(squares / static_cast<float>(p.k) + p.eps);
    }
    __syncthreads();
  }

  float acc[kRowTiles][kTokenTiles][4] = {};
  for (int base = warp; base < num_chunks; base += kDepth * kWarps) {
#pragma unroll
    for (int slot = 0; slot < kDepth; ++slot) {
      const int chunk = base + slot * kWarps;
      if (chunk >= num_chunks) break;
#pragma unroll
      for (int t = 0; t < kTokenTiles; ++t) {
        const int token = t * 8 + quad, at = chunk * kChunk + pair * 8;
        uint4 b[2] = {};
        if (token < p.num_tokens) {
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            b[i] = *reinterpret_cast<const uint4*>(x + int64_t{token} * p.k + at + i * 32);
            if (p.norm != nullptr) b[i] = normed<T>(b[i], scales[token], p.norm + at + i * 32);
          }
        }
#pragma unroll
        for (int r = 0; r < kRowTiles; ++r)
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            const uint4 &low = a[slot][r][i / 2], &high = a[slot][r][2 + i / 2];
            const int w = i % 2 * 2;
            mma_16x8x16<T>(acc[r][t],
                           {word(low, w), word(high, w), word(low, w + 1), word(high, w + 1)},
                           word(b[i / 2], w), word(b[i / 2], w + 1));
          }
      }
      fetch(a[slot], chunk + kDepth * kWarps);
    }
  }

#pragma unroll
  for (int r = 0; r < kRowTiles; ++r)
#pragma unroll
    for (int t = 0; t < kTokenTiles; ++t)
#pragma unroll
      for (int i = 0; i < 4; ++i)
        sums[warp][r][t * 8 + 2 * pair + i % 2][quad + i / 2 * 8] = acc[r][t][i];
  __syncthreads();
  for (int i = threadIdx.x; i < p.num_tokens * 16; i += kWarps * 32) {
    const int token = i / 16, row = i % 16;
    float y[kRowTiles] = {};
#pragma unroll
    for (int w = 0; w < kWarps; ++w)
#pragma unroll
      for (int r = 0; r < kRowTiles; ++r) y[r] += sums[w][r][token][row];
    const int column = blockIdx.x * 16 + row;
    T* const out = static_cast<T*>(p.out) + int64_t{token} * p.n + column;
    if constexpr (kRowTiles == 2) {
      // As the separate operations round.
      const float gate = to_float(from_float<T>(y[0])), up = to_float(from_float<T>(y[1]));
      *out = from_float<T>(gate / (__expf(-gate) + 1) * up);
    } else if (p.end == SmallMatmul::End::kAdd) {
      *out = from_float<T>(to_float(*out) + y[0]);
    } else {
      *out = from_float<T>(p.bias == nullptr ? y[0] : y[0] + p.bias[column]);
    }
  }
}

// -- launcher

constexpr int64_t kMaxTokens = 16;

template <class T, int kTokenTiles>
void run(Launch where, const SmallMatmul& args) {
  const dim3 grid(static_cast<unsigned>(args.n / 16));
  // Few rows: more warps for each, so that as much is on its way.
  if (args.end == SmallMatmul::End::kSwiglu)
    launch(where, small_matmul_kernel<T, 8, kTokenTiles, 2, 2>, grid, 256, 0, args);
  else if (args.n / 16 < where.num_sms)
    launch(where, small_matmul_kernel<T, 16, kTokenTiles, 1, 3>, grid, 512, 0, args);
  else launch(where, small_matmul_kernel<T, 8, kTokenTiles, 1, 4>, grid, 256, 0, args);
}

}  // namespace

bool is_small_matmul(int64_t num_tokens, int64_t n, int64_t k, DType dtype) {
  // Larger n (the head's) run near the memory's speed in cuBLASLt.
  return num_tokens <= kMaxTokens && n % 16 == 0 && n <= 65536 && k % kChunk == 0 &&
         dtype_size(dtype) == 2;
}

void small_matmul(Launch where, const SmallMatmul& args, DType dtype) {
  check_args(is_small_matmul(args.num_tokens, args.n, args.k, dtype), "small_matmul: wrong shapes");
  const auto with_type = [&]<class T>() {
    if (args.num_tokens <= 8) run<T, 1>(where, args);
    else run<T, 2>(where, args);
  };
  if (dtype == DType::kBF16) with_type.template operator()<Bf16>();
  else with_type.template operator()<F16>();
}

}  // namespace nanovllm::cuda
