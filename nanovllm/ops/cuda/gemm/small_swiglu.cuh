#pragma once

#include <algorithm>
#include <bit>

#include "nanovllm/ops/cuda/gemm/gemm_args.h"
#include "nanovllm/ops/cuda/gemm/swiglu_items.cuh"

//   out [T, n] = silu(y g^T) * y u^T,  y = rms_norm(x [T, k]),
// for up to 8 tokens T and weights g, u [n, k] that are not quantized. Memory bandwidth bounds it,
// because the weights are read once. They do not all fit into the rings of small_gemm.cuh at once:
// there, most thread blocks would begin when others end, and compute the norm again. In this kernel
// a multiprocessor has one thread block, which computes the norm of all tokens once, while a large
// ring of weights is being filled, keeps it in shared memory, and takes every gridDim.x-th tile of
// 8 columns of out.
namespace nanovllm::cuda {

/// Stages of a warp's ring.
constexpr int small_swiglu_stages(int num_tokens) { return num_tokens == 1 ? 10 : 8; }

/// The dynamic shared memory: the rings, the normed x, and the norm's weights.
template <class T>
int64_t small_swiglu_bytes(int num_tokens, int k) {
  using Format = PlainFormat<T>;
  return int64_t{kFewWarps} * small_swiglu_stages(num_tokens) * kTilesBytes<Format, 1> +
         int64_t{num_tokens} * few_x_pitch<Format>(k) + int64_t{k} * 4;
}

/// `token_warps` warps compute the norm of each token. In the multiplication all warps divide k.
template <class T, int kStages>
__global__ void __launch_bounds__(kFewThreads, 1)
    small_swiglu_kernel(const GemmArgs p, int token_warps) {
  using Format = PlainFormat<T>;
  extern __shared__ __align__(128) unsigned char shared[];
  __shared__ FewBlockSums<1> sums;
  __shared__ float squares_of[kFewWarps];
  const int warp = threadIdx.x / 32, pitch = few_x_pitch<Format>(p.k), pieces = p.k / 8;
  const uint32_t x = shared_address(shared) + kFewWarps * kStages * kTilesBytes<Format, 1>;
  const uint32_t norm = x + p.num_tokens * pitch;
  for (int i = threadIdx.x; i < p.k / 4; i += kFewThreads)
    async_copy16(norm + i * 16, p.norm + i * 4);
  commit_async_copies();
  const QuantizedWeight w = {.values = p.w, .n = 2 * p.n, .k = p.k};
  SwigluItems<Format, kStages, 1> items(w, p.n, p.k, (p.n + 7) / 8, shared_address(shared),
                                        kTilesBytes<Format, 1>);
  items.begin();
  begin_kernel();

  const int token = warp / token_warps;
  const int first = static_cast<int>(threadIdx.x) - token * token_warps * 32;
  const int step = token_warps * 32;
  const bool exists = token < p.num_tokens;
  const auto* const from = static_cast<const uint4*>(p.x) + int64_t{token} * pieces;
  float squares = 0;
  if (exists) {
#pragma unroll 4
    for (int i = first; i < pieces; i += step) {
      const uint4 piece = from[i];
      squares = add_squares(bits_as<Vec<T, 8>>(piece), squares);
      store_shared(x + token * pitch + i * 16, piece);
    }
  }
  squares = warp_sum(squares);
  if (threadIdx.x % 32 == 0) squares_of[warp] = squares;
  wait_async_copies<kStages>();  // the norm's weights
  __syncthreads();
  if (exists) {
    squares = 0;
    for (int i = 0; i < token_warps; ++i) squares += squares_of[token * token_warps + i];
    const float factor = rms_factor(squares, p.k, p.eps);
#pragma unroll 2
    for (int i = first; i < pieces; i += step) {
      const uint32_t at = x + token * pitch + i * 16;
      const uint4 weights[2] = {load_shared(norm + i * 32), load_shared(norm + i * 32 + 16)};
      store_shared(at, bits_as<uint4>(normed(bits_as<Vec<T, 8>>(load_shared(at)), factor,
                                             bits_as<Vec<float, 8>>(weights))));
    }
  }
  __syncthreads();
  run_swiglu_items<Format>(items, sums, x, pitch, p.num_tokens, static_cast<T*>(p.out),
                           [](int, int token_of) { return token_of; });
}

// -- launcher

/// Whether the kernel's shared memory suffices.
template <class T>
bool supports_small_swiglu(Launch where, const GemmArgs& args) {
  constexpr int64_t kStatic = sizeof(FewBlockSums<1>) + 1024;
  return args.num_tokens <= kMaxTokens &&
         small_swiglu_bytes<T>(args.num_tokens, args.k) + kStatic <= where.shared_bytes;
}

template <class T>
void small_swiglu(Launch where, const GemmArgs& args) {
  const int token_warps =
      kFewWarps / static_cast<int>(std::bit_ceil(static_cast<unsigned>(args.num_tokens)));
  const auto start = [&]<int kStages>() {
    constexpr auto kernel = small_swiglu_kernel<T, kStages>;
    allow_shared_memory<kernel>();
    launch(where, kernel, blocks_for(std::min((args.n + 7) / 8, where.num_sms)), kFewThreads,
           static_cast<size_t>(small_swiglu_bytes<T>(args.num_tokens, args.k)), args, token_warps);
  };
  if (args.num_tokens == 1) start.template operator()<small_swiglu_stages(1)>();
  else start.template operator()<small_swiglu_stages(kMaxTokens)>();
}

}  // namespace nanovllm::cuda
