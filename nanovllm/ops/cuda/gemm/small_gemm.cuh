#pragma once

#include "nanovllm/ops/cuda/collectives/pairs.cuh"
#include "nanovllm/ops/cuda/device/mma.cuh"
#include "nanovllm/ops/cuda/elementwise/row_ops.cuh"
#include "nanovllm/ops/cuda/gemm/gemm_args.h"

//   out [T, n] = norm(x) w^T + bias, out += x w^T, or SwiGLU (Epilogue), for up to 16 tokens T.
// Memory bandwidth bounds it, because the weights are read once, and the latency from one kernel to
// the next. A thread block computes 16 to 48 rows of w for all tokens. It prefetches most of its
// weights into shared memory before the previous kernel has ended (programmatic dependent launch),
// and leaves registers free, so that thread blocks of the next kernel can start and do the same.
// Each warp multiplies every eighth chunk of k and reads its part of x into registers once; in the
// end the warps' sums are added.
//
// A lane copies into shared memory exactly those pieces of w that it will feed to the tensor cores
// itself, so no other thread waits for them. This is possible because the order of k inside a GEMM
// is free: a piece is 16 contiguous bytes of one row. In each chunk of 64 columns of k, lane
// 4 q + p takes elements 8 p to 8 p + 7 and 32 + 8 p to 32 + 8 p + 7 of row q of 8, and of token q.
namespace nanovllm::cuda {

// -- layout

constexpr int kSmallWarps = 8, kSmallThreads = kSmallWarps * 32;
constexpr int kSmallChunk = 64;            // columns of k
constexpr int kSmallPieceBytes = 32 * 16;  // 16 bytes for each lane of a warp

/// Which 16 rows of w one matrix instruction multiplies (a tile).
enum class SmallTile {
  kWhole,   // 16 columns of out
  kSwiglu,  // the gates of 8 columns, then their ups
};

// -- kernel

/// kTokenTiles: tiles of 8 tokens. kTiles: tiles of w in a thread block. kStages: chunks of w in a
/// warp's ring in shared memory. kXStages: chunks of x in a warp's registers.
template <class T, SmallTile kTile, bool kNorm, int kTokenTiles, int kTiles, int kStages,
          int kXStages>
__global__ void __launch_bounds__(kSmallThreads, 2)
    small_gemm_kernel(const GemmArgs p, const __grid_constant__ Peers peers) {
  constexpr int kChunk = kSmallChunk, kPieces = 2;
  constexpr int kTokens = kTokenTiles * 8, kColumns = kTile == SmallTile::kWhole ? 16 : 8;
  constexpr bool kCanSend = kTile == SmallTile::kWhole && !kNorm;
  constexpr int kPitch = 20;  // floats from one token's sums to the next one's: no bank conflicts
  constexpr int kStageBytes = kTiles * 2 * kPieces * kSmallPieceBytes;
  static_assert(kTiles * kTokens * kPitch * 4 <= kStages * kStageBytes,
                "the sums need more memory than the rings");
  extern __shared__ __align__(128) unsigned char shared[];
  __shared__ float squares_of[kSmallWarps][kTokens];
  float* const norm =
      reinterpret_cast<float*>(shared + kSmallWarps * kStages * kStageBytes);  // [k]
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, quad = lane / 4, pair = lane % 4;
  const int num_chunks = (p.k + kChunk - 1) / kChunk;
  const int first_column = blockIdx.x * kTiles * kColumns;
  unsigned char* const ring = shared + warp * kStages * kStageBytes;
  const uint32_t mine = shared_address(ring) + lane * 16;

  // Row 0 to 15 of a tile, as a row of w. A tile behind the last column repeats the last tile, and
  // its sums are not stored.
  const auto row_of = [&](int tile, int row) {
    return min(first_column + tile * kColumns, p.n - kColumns) + row % 8 +
           row / 8 * (kTile == SmallTile::kSwiglu ? p.n : 8);
  };
  const int64_t row_bytes = int64_t{p.k} * 2;
  const auto fetch = [&](int stage, int chunk) {
    if (chunk < num_chunks) {
      const auto* const from =
          static_cast<const unsigned char*>(p.w) + chunk * (kPieces * 64) + pair * 16;
#pragma unroll
      for (int r = 0; r < kTiles; ++r)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int64_t row = row_of(r, half * 8 + quad);
#pragma unroll
          for (int i = 0; i < kPieces; ++i)
            async_copy16_of_128(
                mine + stage * kStageBytes + ((r * 2 + half) * kPieces + i) * kSmallPieceBytes,
                from + row * row_bytes + i * 64);
        }
    }
    commit_async_copies();
  };
  if constexpr (kNorm)
    for (int i = threadIdx.x; i < num_chunks * (kChunk / 4); i += kSmallThreads)
      async_copy16(shared_address(norm + i * 4), p.norm + i * 4);
  commit_async_copies();
#pragma unroll
  for (int i = 0; i < kStages; ++i) fetch(i, warp + i * kSmallWarps);
  // With a norm, and if all weights fit the rings, the next kernel may start, and load its weights,
  // only when the previous kernel has ended, so that its loads do not delay this kernel's x. If
  // this kernel loads more weights later, the next kernel may start at once. Without a norm this
  // kernel is so short that the start of the next one takes longer. sum_pairs() relies on the wait.
  const bool is_early = (!kNorm || num_chunks > kStages * kSmallWarps) && peers.world == 1;
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
  for (int i = 0; i < kXStages; ++i) fetch_x(x[i], warp + i * kSmallWarps);
  // A thread's outputs. With kAdd their old values are loaded together with x.
  constexpr int kBlockColumns = kTiles * kColumns;
  constexpr int kOutputs = (kTokens * kBlockColumns + kSmallThreads - 1) / kSmallThreads;
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
      const int at = threadIdx.x + i * kSmallThreads;
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
    for (int chunk = warp + kXStages * kSmallWarps; chunk < num_chunks; chunk += kSmallWarps) {
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
      for (int w = 0; w < kSmallWarps; ++w) sum += squares_of[w][t * 8 + quad];
      scale[t] = rsqrtf(sum * inverse_k + p.eps);
    }
  }

  float acc[kTiles][kTokenTiles][4] = {};
  // A matrix instruction waits for the last one with the same sums, so a single tile has two.
  constexpr bool kHasOdd = kTiles * kTokenTiles == 1;
  float odd[4] = {};
  // A multiple of both numbers of stages, so that the stage of each unrolled step is a constant.
  constexpr int kSteps = kStages % kXStages == 0 ? kStages : kStages * kXStages;
  for (int base = warp; base < num_chunks; base += kSteps * kSmallWarps) {
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      const int chunk = base + step * kSmallWarps;
      if (chunk >= num_chunks) break;
      const int stage = step % kStages;
      uint4(&b)[kTokenTiles][kPieces] = x[step % kXStages];
      if constexpr (kNorm) {
#pragma unroll
        for (int i = 0; i < kPieces; ++i) {
          const auto weight = load<8>(norm + chunk * kChunk + i * 32 + pair * 8);
#pragma unroll
          for (int t = 0; t < kTokenTiles; ++t)
            b[t][i] = bits_as<uint4>(normed(elements(b[t][i]), scale[t], weight));
        }
      }
      wait_async_copies<kStages - 1>();
#pragma unroll
      for (int r = 0; r < kTiles; ++r)
#pragma unroll
        for (int i = 0; i < kPieces; ++i) {
          using Words = Vec<uint32_t, 4>;
          const uint32_t from =
              mine + stage * kStageBytes + (r * 2 * kPieces + i) * kSmallPieceBytes;
          const auto upper = bits_as<Words>(load_shared(from));
          const auto lower = bits_as<Words>(load_shared(from + kPieces * kSmallPieceBytes));
#pragma unroll
          for (int j = 0; j < 4; j += 2)
#pragma unroll
            for (int t = 0; t < kTokenTiles; ++t) {
              const auto words = bits_as<Words>(b[t][i]);
              mma_16x8x16<T>(kHasOdd && j > 0 ? odd : acc[r][t],
                             {upper.x[j], lower.x[j], upper.x[j + 1], lower.x[j + 1]}, words.x[j],
                             words.x[j + 1]);
            }
        }
      fetch(stage, chunk + kStages * kSmallWarps);
      fetch_x(b, chunk + kXStages * kSmallWarps);
    }
  }

  if constexpr (kHasOdd) {
#pragma unroll
    for (int i = 0; i < 4; ++i) acc[0][0][i] += odd[i];
  }
  const bool sends = kCanSend && peers.world > 1;
  const uint32_t epoch = sends ? current_epoch(peers) : 0;
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
    const int at = threadIdx.x + i * kSmallThreads;
    if (!is_output(at)) continue;
    const int token = at / kBlockColumns, column = at % kBlockColumns;
    const float* from = reinterpret_cast<const float*>(shared) +
                        (column / kColumns * kTokens + token) * kPitch + column % kColumns;
    float y = 0, up = 0;
#pragma unroll
    for (int w = 0; w < kSmallWarps; ++w) {
      y += from[0];
      if constexpr (kTile == SmallTile::kSwiglu) up += from[8];
      from += kStages * kStageBytes / 4;
    }
    if constexpr (kTile == SmallTile::kSwiglu) {
      *out_at(at) = swiglu_of_sums<T>(y, up);
    } else {
      if (p.bias != nullptr) y += p.bias[first_column + column];
      y += old[i];
      if (sends) send_element<T>(peers, epoch, int64_t{token} * p.n + first_column + column, y);
      else *out_at(at) = from_float<T>(y);
    }
  }
}

// -- launcher

template <class T, SmallTile kTile, bool kNorm, int kTokenTiles, int kTiles, int kStages,
          int kXStages>
void run_small_gemm(Launch where, const GemmArgs& args) {
  constexpr int kColumns = kTile == SmallTile::kWhole ? 16 : 8;
  constexpr auto kernel =
      small_gemm_kernel<T, kTile, kNorm, kTokenTiles, kTiles, kStages, kXStages>;
  constexpr int kStageBytes = kTiles * 4 * kSmallPieceBytes;
  const size_t bytes =
      size_t{kSmallWarps} * kStages * kStageBytes + (kNorm ? static_cast<size_t>(args.k) * 4 : 0);
  allow_shared_memory<kernel>();
  launch(where, kernel, blocks_for(args.n, kTiles * kColumns), kSmallThreads, bytes, args,
         args.peers != nullptr ? *args.peers : Peers());
}

}  // namespace nanovllm::cuda
