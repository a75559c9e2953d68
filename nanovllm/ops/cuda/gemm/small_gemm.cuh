#pragma once

#include "nanovllm/ops/cuda/collectives/pairs.cuh"
#include "nanovllm/ops/cuda/elementwise/row_ops.cuh"
#include "nanovllm/ops/cuda/gemm/few_items.cuh"

//   out [T, n] = norm(x) w^T + bias, out += x w^T, or SwiGLU (Epilogue), for up to 16 tokens T.
// Memory bandwidth bounds it, because the weights are read once, and the latency from one kernel to
// the next. A thread block computes 16 to 48 rows of w for all tokens. It prefetches most of its
// weights into shared memory before the previous kernel has ended (programmatic dependent launch),
// and leaves registers free, so that thread blocks of the next kernel can start and do the same.
// Each warp multiplies every eighth chunk of k (few_items.cuh) and reads its part of x into
// registers once; in the end the warps' sums are added.
namespace nanovllm::cuda {

// -- kernel

/// kTokenTiles: tiles of 8 tokens. kTiles: tiles of w in a thread block. kStages: chunks of w in a
/// warp's ring in shared memory. kXStages: chunks of x in a warp's registers.
template <class T, FewTile kTile, bool kNorm, int kTokenTiles, int kTiles, int kStages,
          int kXStages>
__global__ void __launch_bounds__(kFewThreads, 2)
    small_gemm_kernel(const GemmArgs p, const __grid_constant__ Peers peers) {
  using Format = PlainFormat<T>;
  using Items = FewItems<Format, kTile, kTiles, kStages, /*kLoops=*/false, /*kXInRing=*/false>;
  constexpr int kChunk = Format::kChunk, kPieces = Format::kPieces;
  constexpr int kTokens = kTokenTiles * 8, kColumns = kTileColumns<kTile>;
  constexpr bool kCanSend = kTile == FewTile::kWhole && !kNorm;
  constexpr int kStageBytes = kTilesBytes<Format, kTiles>, kRingBytes = kStages * kStageBytes;
  static_assert(kTiles * kTokens * kSumPitch * 4 <= kRingBytes,
                "the sums need more memory than the rings");
  static_assert(kStages % kXStages == 0);
  extern __shared__ __align__(128) unsigned char shared[];
  __shared__ float squares_of[kFewWarps][kTokens];
  float* const norm = reinterpret_cast<float*>(shared + kFewWarps * kRingBytes);  // [k]
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, quad = lane / 4, pair = lane % 4;
  const int num_chunks = (p.k + kChunk - 1) / kChunk;
  const int first_column = blockIdx.x * kTiles * kColumns;

  if constexpr (kNorm)
    for (int i = threadIdx.x; i < num_chunks * (kChunk / 4); i += kFewThreads)
      async_copy16(shared_address(norm + i * 4), p.norm + i * 4);
  commit_async_copies();
  const QuantizedWeight w = {.values = p.w, .k = p.k};
  Items items(w, p.n, p.k, gridDim.x, shared_address(shared), kStageBytes);
  items.begin();
  // With a norm, and if all weights fit the rings, the next kernel may start, and load its weights,
  // only when the previous kernel has ended, so that its loads do not delay this kernel's x. If
  // this kernel loads more weights later, the next kernel may start at once. Without a norm this
  // kernel is so short that the start of the next one takes longer. sum_pairs() relies on the wait.
  const bool is_early = (!kNorm || num_chunks > kStages * kFewWarps) && peers.world == 1;
  if (is_early) launch_dependents();
  wait_for_previous_kernel();
  if (!is_early) launch_dependents();

  uint4 x[kXStages][kTokenTiles][kPieces];
  const T* const x_row = static_cast<const T*>(p.x) + int64_t{quad} * p.k;
  const auto fetch_x = [&](uint4(&to)[kTokenTiles][kPieces], int chunk) {
#pragma unroll
    for (int t = 0; t < kTokenTiles; ++t)
#pragma unroll
      for (int i = 0; i < kPieces; ++i) {
        to[t][i] = make_uint4(0, 0, 0, 0);
        const T* const from = x_row + int64_t{t} * 8 * p.k + (chunk * kChunk + i * 32 + pair * 8);
        if (t * 8 + quad < p.num_tokens && chunk < num_chunks)
          to[t][i] = *reinterpret_cast<const uint4*>(from);
      }
  };
#pragma unroll
  for (int i = 0; i < kXStages; ++i) fetch_x(x[i], warp + i * kFewWarps);
  // A thread's outputs. With kAdd their old values are loaded together with x.
  constexpr int kBlockColumns = kTiles * kColumns;
  constexpr int kOutputs = (kTokens * kBlockColumns + kFewThreads - 1) / kFewThreads;
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
      const int at = threadIdx.x + i * kFewThreads;
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
#pragma unroll
        for (int j = 0; j < kPieces; ++j) scale[t] = add_squares(elements(x[i][t][j]), scale[t]);
    for (int chunk = warp + kXStages * kFewWarps; chunk < num_chunks; chunk += kFewWarps) {
      uint4 more[kTokenTiles][kPieces];
      fetch_x(more, chunk);
#pragma unroll
      for (int t = 0; t < kTokenTiles; ++t)
#pragma unroll
        for (int j = 0; j < kPieces; ++j) scale[t] = add_squares(elements(more[t][j]), scale[t]);
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
      for (int w = 0; w < kFewWarps; ++w) sum += squares_of[w][t * 8 + quad];
      scale[t] = rsqrtf(sum * inverse_k + p.eps);
    }
  }

  float acc[kTiles][kTokenTiles][4] = {}, odd[4] = {};
  items.template multiply<kStages, kTokenTiles>(
      acc, odd,
      [&](auto& to, const FewStep& step) {
        const auto& from = x[step.place % kXStages];
#pragma unroll
        for (int i = 0; i < kPieces; ++i)
#pragma unroll
          for (int t = 0; t < kTokenTiles; ++t) {
            to[t][i] = from[t][i];
            if constexpr (kNorm) {
              const auto weight = load<8>(norm + step.chunk * kChunk + i * 32 + pair * 8);
              to[t][i] = bits_as<uint4>(normed(elements(from[t][i]), scale[t], weight));
            }
          }
      },
      [&](const FewStep& step) {
        fetch_x(x[step.place % kXStages], step.chunk + kXStages * kFewWarps);
      });
  if constexpr (kTiles * kTokenTiles == 1) {
#pragma unroll
    for (int i = 0; i < 4; ++i) acc[0][0][i] += odd[i];
  }
  const bool sends = kCanSend && peers.world > 1;
  const uint32_t epoch = sends ? current_epoch(peers) : 0;
  // Each warp writes its sums to the memory of its ring.
  wait_async_copies<0>();
  __syncwarp();
  store_sums(reinterpret_cast<float*>(shared + warp * kRingBytes), acc);
  __syncthreads();
#pragma unroll
  for (int i = 0; i < kOutputs; ++i) {
    const int at = threadIdx.x + i * kFewThreads;
    if (!is_output(at)) continue;
    const int token = at / kBlockColumns, column = at % kBlockColumns;
    const float* const from = reinterpret_cast<const float*>(shared) +
                              (column / kColumns * kTokens + token) * kSumPitch + column % kColumns;
    float y = add_warps(0, from, kRingBytes / 4);
    if constexpr (kTile == FewTile::kSwiglu) {
      *out_at(at) = swiglu_of_sums<T>(y, add_warps(0, from + 8, kRingBytes / 4));
    } else {
      if (p.bias != nullptr) y += p.bias[first_column + column];
      y += old[i];
      if (sends) send_element<T>(peers, epoch, int64_t{token} * p.n + first_column + column, y);
      else *out_at(at) = from_float<T>(y);
    }
  }
}

// -- launcher

template <class T, FewTile kTile, bool kNorm, int kTokenTiles, int kTiles, int kStages,
          int kXStages>
void run_small_gemm(Launch where, const GemmArgs& args) {
  constexpr auto kernel =
      small_gemm_kernel<T, kTile, kNorm, kTokenTiles, kTiles, kStages, kXStages>;
  constexpr size_t kRings = size_t{kFewWarps} * kStages * kTilesBytes<PlainFormat<T>, kTiles>;
  const size_t bytes = kRings + (kNorm ? static_cast<size_t>(args.k) * 4 : 0);
  allow_shared_memory<kernel>();
  launch(where, kernel, blocks_for(args.n, kTiles * kTileColumns<kTile>), kFewThreads, bytes, args,
         args.peers != nullptr ? *args.peers : Peers());
}

}  // namespace nanovllm::cuda
