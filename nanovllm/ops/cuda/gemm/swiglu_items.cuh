#pragma once

#include "nanovllm/ops/cuda/elementwise/row_ops.cuh"
#include "nanovllm/ops/cuda/gemm/few_items.cuh"

// SwiGLU of up to 8 tokens whose x is in shared memory, in the loop of few_items.cuh. A thread
// block takes every gridDim.x-th item: some tiles of 8 columns of out, for which it multiplies
// gates and ups. While its warps add up their sums, the weights of the next items arrive. The MLP
// of few tokens and mixtures of experts use it.
namespace nanovllm::cuda {

constexpr int kMaxTokens = 8;  // columns of a matrix instruction

/// Bytes from one token's row of x to the next one's, so that there are no bank conflicts.
template <class Format>
__host__ __device__ inline int few_x_pitch(int k) {
  const int row = (k + Format::kChunk - 1) / Format::kChunk * Format::kChunk * 2;
  return row + (Format::kScaled ? 16 : 64);
}

template <int kTiles>
using FewBlockSums = float[2][kFewWarps][kTiles * kMaxTokens * kSumPitch];  // used in turn

/// The items of a weight that has, for each expert, n rows of gates, then n rows of ups.
template <class Format, int kStages, int kTiles, class PlaceOf = PlaceInWeight<kTiles * 8>>
using SwigluItems = FewItems<Format, FewTile::kSwiglu, kTiles, kStages, /*kLoops=*/true,
                             /*kXInRing=*/false, PlaceOf>;

/// Computes all items, after items.begin(). x has num_tokens rows, `pitch` bytes apart.
/// row_of(item, token) is the row of act [, n] that the item computes for the token, or -1 if it
/// computes none.
template <class Format, int kStages, int kTiles, class PlaceOf, class RowOf>
__device__ __forceinline__ void run_swiglu_items(
    SwigluItems<Format, kStages, kTiles, PlaceOf>& items, FewBlockSums<kTiles>& sums, uint32_t x,
    int pitch, int num_tokens, typename Format::T* act, const RowOf& row_of) {
  constexpr int kColumns = kTiles * 8, kStride = kTiles * kMaxTokens * kSumPitch;
  for (int item = blockIdx.x, turn = 0; item < items.num_items; item += gridDim.x, turn ^= 1) {
    float acc[kTiles][1][4] = {};
    items.template multiply<1, 1>(
        acc, acc[0][0],
        [&](auto& to, const FewStep& step) {
          // Tokens that do not exist repeat the last one.
          load_x<Format>(to[0], [&](int token, int piece) {
            return x + min(token, num_tokens - 1) * pitch + step.chunk * (Format::kChunk * 2) +
                   piece * 16;
          });
        },
        [](const FewStep&) {});
    store_sums(sums[turn][threadIdx.x / 32], acc);
    __syncthreads();
    const int token = threadIdx.x / kColumns, tile = threadIdx.x % kColumns / 8;
    const int column = items.place_of(item).column + threadIdx.x % kColumns;
    const int row = token < num_tokens ? row_of(item, token) : -1;
    if (row >= 0 && column < items.n) {
      const float* const from =
          sums[turn][0] + (tile * kMaxTokens + token) * kSumPitch + threadIdx.x % 8;
      act[int64_t{row} * items.n + column] = swiglu_of_sums<typename Format::T>(
          add_warps(0, from, kStride), add_warps(0, from + 8, kStride));
    }
  }
}

}  // namespace nanovllm::cuda
