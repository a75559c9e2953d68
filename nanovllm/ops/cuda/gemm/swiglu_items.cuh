#pragma once

#include "nanovllm/ops/cuda/elementwise/row_ops.cuh"
#include "nanovllm/ops/cuda/gemm/few_multiply.cuh"

// The loop of thread blocks that compute SwiGLU of up to 8 tokens, whose x is in shared memory. A
// thread block takes every gridDim.x-th item: some tiles of 8 columns of out, for which it
// multiplies gates and ups. Its warps divide k, and load the weights of the next items while they
// add up their sums. The MLP of few tokens and mixtures of experts use it.
namespace nanovllm::cuda {

constexpr int kFewWarps = 8, kFewThreads = kFewWarps * 32;
constexpr int kMaxTokens = 8;  // columns of a matrix instruction

/// Bytes from one token's row of x to the next one's, so that there are no bank conflicts.
template <class Format>
__host__ __device__ inline int few_x_pitch(int k) {
  const int row = (k + Format::kChunk - 1) / Format::kChunk * Format::kChunk * 2;
  return row + (Format::kScaled ? 16 : 64);
}

template <int kTiles>
using FewBlockSums = float[2][kFewWarps][kTiles * kMaxTokens * kSumPitch];  // used in turn

/// The loop of one thread block. first_row(item) is the row of w with the first gate of the expert
/// that the item belongs to; 0 in an MLP without experts.
template <class Format, int kStages, int kTiles, class FirstRow>
struct SwigluItems {
  using T = typename Format::T;
  static constexpr int kChunk = Format::kChunk, kColumns = kTiles * 8;
  static constexpr int kStageBytes = kTilesBytes<Format, kTiles>;

  const QuantizedWeight& w;  // for each expert, n rows of gates, then n rows of ups
  int n, num_chunks, num_items;
  uint32_t ring;  // shared address of this warp's ring
  FirstRow first_row;
  // The item and the chunk of k that this warp fetches next, and where it copies them from.
  int item, chunk;
  ChunkSource<Format, kTiles> source;

  __device__ SwigluItems(const QuantizedWeight& w_, int n_, int k, int num_items_, uint32_t rings,
                         const FirstRow& first_row_)
      : w(w_),
        n(n_),
        num_chunks((k + kChunk - 1) / kChunk),
        num_items(num_items_),
        ring(rings + threadIdx.x / 32 * kStages * kStageBytes),
        first_row(first_row_),
        item(static_cast<int>(threadIdx.x) / 32 < num_chunks ? blockIdx.x : num_items_),
        chunk(threadIdx.x / 32) {}

  __device__ int num_tiles() const { return (n + kColumns - 1) / kColumns; }

  __device__ __forceinline__ void begin_item() {
    if (item >= num_items) return;
    const int64_t first = first_row(item);
    source.begin(w, threadIdx.x / 32, [&](int tile, int row) {
      return first + min(item % num_tiles() * kColumns + tile * 8, n - 8) + row % 8 + row / 8 * n;
    });
  }
  __device__ __forceinline__ void fetch(int stage) {
    if (item < num_items) {
      source.fetch(ring + stage * kStageBytes, kFewWarps);
      chunk += kFewWarps;
      if (chunk >= num_chunks) {
        chunk = threadIdx.x / 32, item += gridDim.x;
        begin_item();
      }
    }
    commit_async_copies();
  }
  /// Fills the ring.
  __device__ __forceinline__ void begin() {
    begin_item();
#pragma unroll
    for (int stage = 0; stage < kStages; ++stage) fetch(stage);
  }

  /// Computes all items. x has num_tokens rows, `pitch` bytes apart. row_of(item, token) is the row
  /// of act [, n] that the item computes for the token, or -1 if it computes none.
  template <class RowOf>
  __device__ __forceinline__ void run(FewBlockSums<kTiles>& sums, uint32_t x, int pitch,
                                      int num_tokens, T* act, const RowOf& row_of) {
    const int warp = threadIdx.x / 32;
    int stage = 0;
    for (int at = blockIdx.x, turn = 0; at < num_items; at += gridDim.x, turn ^= 1) {
      float acc[kTiles][1][4] = {};
#pragma unroll 1
      for (int c = warp; c < num_chunks; c += kFewWarps) {
        // Tokens that do not exist repeat the last one.
        uint4 b[1][Format::kGroups];
        load_x<Format>(b[0], [&](int token, int piece) {
          return x + min(token, num_tokens - 1) * pitch + c * (kChunk * 2) + piece * 16;
        });
        wait_async_copies<kStages - 1>();
        __syncwarp();  // other lanes have copied some of the scales
        multiply_chunk<Format>(acc, ring + stage * kStageBytes, b, w);
        __syncwarp();  // all lanes have read the scales, which fetch() overwrites
        fetch(stage);
        stage = stage + 1 == kStages ? 0 : stage + 1;
      }
      store_sums(sums[turn][warp], acc);
      __syncthreads();
      const int token = threadIdx.x / kColumns, tile = threadIdx.x % kColumns / 8;
      const int column = at % num_tiles() * kColumns + threadIdx.x % kColumns;
      const int row = token < num_tokens ? row_of(at, token) : -1;
      if (row >= 0 && column < n) {
        float gate = 0, up = 0;
#pragma unroll
        for (int other = 0; other < kFewWarps; ++other) {
          const float* const sum =
              sums[turn][other] + (tile * kMaxTokens + token) * kSumPitch + threadIdx.x % 8;
          gate += sum[0];
          up += sum[8];
        }
        act[int64_t{row} * n + column] = swiglu_of_sums<T>(gate, up);
      }
    }
  }
};

}  // namespace nanovllm::cuda
