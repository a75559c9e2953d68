#pragma once

#include "nanovllm/ops/cuda/device/mma.cuh"
#include "nanovllm/ops/cuda/gemm/quantized/weight_formats.cuh"

// How a warp multiplies a chunk of k of rows of w by few tokens, for each format of w. All GEMMs of
// few tokens use it.
//
// A lane copies into shared memory exactly those pieces of w that it will feed to the tensor cores
// itself, so no other thread waits for them. This is possible because the order of k inside a GEMM
// is free: a piece is 16 contiguous bytes of one row. In each chunk of k of a plain weight, lane
// 4 q + p takes elements 8 p to 8 p + 7 and 32 + 8 p to 32 + 8 p + 7 of row q of 8, and of token q;
// weight_formats.cuh has the other formats.
//
// A tile is 16 rows of w. For a chunk of kTiles tiles a warp's memory holds the pieces [tiles,
// halves of 8 rows, kPieces, lanes], then the words of the scales [groups, tiles, 16 rows]. A group
// is some neighbouring columns of a row of w that share a scale.
namespace nanovllm::cuda {

/// Copies 4 bytes into shared memory, as async_copy16() copies 16.
__device__ __forceinline__ void async_copy4(uint32_t to, const void* from) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(to), "l"(from) : "memory");
}

inline constexpr int kPieceBytes = 32 * 16;  // 16 bytes for each lane of a warp
/// The number of groups of a chunk that have scales of their own.
template <class Format>
inline constexpr int kScaleGroups = !Format::kScaled ? 0
                                    : Format::kFine  ? Format::kGroups
                                                     : 1;
template <class Format>
inline constexpr int kTileValueBytes = 2 * Format::kPieces* kPieceBytes;
/// The distance from the words of a group to those of the next one. Half a warp copies the words of
/// one tile. With an odd number of tiles, the last copy has room for a tile that is not there.
template <int kTiles>
inline constexpr int kGroupWordBytes = (kTiles + 1) / 2 * 2 * 16 * 4;
/// The size of a warp's memory for a chunk of kTiles tiles.
template <class Format, int kTiles>
inline constexpr int kTilesBytes =
    kTiles* kTileValueBytes<Format> + kScaleGroups<Format>* kGroupWordBytes<kTiles>;

/// Loads a lane's pieces of x for a chunk and 8 tokens. address(token, i) is the shared address of
/// the i-th 16 bytes of the token's row in this chunk.
template <class Format, class Address>
__device__ __forceinline__ void load_x(uint4 (&x)[Format::kGroups], const Address& address) {
  const int lane = threadIdx.x % 32, quad = lane / 4, pair = lane % 4;
#pragma unroll
  for (int i = 0; i < Format::kGroups; ++i) {
    if constexpr (Format::kInOrder) {
      x[i] = load_shared(address(quad, Format::x_column(i, pair) / 8));
    } else {
      uint32_t words[4];
      ldmatrix_x4(words, address(lane % 8, i * 4 + lane / 8));
      x[i] = make_uint4(words[0], words[1], words[2], words[3]);
    }
  }
}

/// The addresses from which a lane copies its pieces and words of kTiles tiles of w. A weight that
/// is not quantized has only `values`, `n` and `k`.
template <class Format, int kTiles>
struct ChunkSource {
  static constexpr int kBytes = Format::kPieces * 64;  // bytes of a row in a chunk
  const unsigned char* rows[kTiles][2];
  // Lanes 16 to 31 copy the words of another tile.
  const uint32_t* words[Format::kScaled ? (kTiles + 1) / 2 : 1];
  int left;        // bytes of a row that follow this lane's first ones, if rows are not padded
  int group_step;  // words from a group's scale to the next one's; 0 if scales are of rows

  /// Makes `chunk` the next one. row_of(tile, i) is the row of w that is row i of 16 of the tile.
  template <class RowOf>
  __device__ __forceinline__ void begin(const QuantizedWeight& w, int chunk, const RowOf& row_of) {
    const int lane = threadIdx.x % 32, quad = lane / 4, pair = lane % 4;
    const int64_t row_bytes = Format::row_bytes(w.k);
    const int first = chunk * kBytes + pair * 16;
#pragma unroll
    for (int r = 0; r < kTiles; ++r)
#pragma unroll
      for (int half = 0; half < 2; ++half)
        rows[r][half] = static_cast<const unsigned char*>(w.values) +
                        row_of(r, half * 8 + quad) * row_bytes + first;
    if constexpr (Format::kScaled) {
      group_step = w.group_shift == kWholeShift ? 0 : w.group_stride;
#pragma unroll
      for (int i = 0; i < (kTiles + 1) / 2; ++i) {
        const int64_t row = row_of(min(2 * i + lane / 16, kTiles - 1), lane % 16);
        words[i] = w.scales + (row >> w.row_shift) * w.row_stride +
                   int64_t{chunk} * kScaleGroups<Format> * group_step;
      }
    }
    if constexpr (!Format::kPadded) left = static_cast<int>(row_bytes) - 16 - first;
  }
  /// Copies a chunk to the warp's memory `to`, and moves on by `chunks` chunks. Behind the last
  /// column it copies the last columns again.
  __device__ __forceinline__ void fetch(uint32_t to, int chunks) {
    const int lane = threadIdx.x % 32;
    const uint32_t to_lane = to + lane * 16;
#pragma unroll
    for (int r = 0; r < kTiles; ++r)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
#pragma unroll
        for (int i = 0; i < Format::kPieces; ++i)
          async_copy16_of_128(to_lane + ((r * 2 + half) * Format::kPieces + i) * kPieceBytes,
                              rows[r][half] + (Format::kPadded ? i * 64 : min(i * 64, left)));
        rows[r][half] += chunks * kBytes;
      }
    if constexpr (Format::kScaled) {
      const uint32_t to_words = to + kTiles * kTileValueBytes<Format>;
#pragma unroll
      for (int i = 0; i < (kTiles + 1) / 2; ++i) {
#pragma unroll
        for (int g = 0; g < kScaleGroups<Format>; ++g)
          async_copy4(to_words + g * kGroupWordBytes<kTiles> + (32 * i + lane) * 4,
                      words[i] + int64_t{g} * group_step);
        words[i] += int64_t{chunks * kScaleGroups<Format>} * group_step;
      }
    }
    if constexpr (!Format::kPadded) left -= chunks * kBytes;
  }
};

/// acc [tiles, 16 rows, tokens] += a chunk of w, which this warp has copied to `from`, times x.
///
/// A matrix instruction waits for the last one with the same sums. Tiles take turns, but a single
/// tile needs other sums for every second instruction. With scales it has them for each group.
/// Without scales these are `odd`, which is acc[0][0] where waiting does not matter.
template <class Format, int kTiles, int kTokenTiles>
__device__ __forceinline__ void multiply_chunk(float (&acc)[kTiles][kTokenTiles][4],
                                               float (&odd)[4], uint32_t from,
                                               const uint4 (&x)[kTokenTiles][Format::kGroups],
                                               const QuantizedWeight& weight) {
  using T = typename Format::T;
  constexpr int kPieces = Format::kPieces, kGroups = Format::kGroups;
  constexpr int kPerPiece = kGroups / kPieces;
  constexpr int kPerScale = kGroups / (Format::kScaled ? kScaleGroups<Format> : 1);
  const uint32_t mine = from + threadIdx.x % 32 * 16;
  const uint32_t words = from + kTiles * kTileValueBytes<Format> + threadIdx.x % 32 / 4 * 4;
  uint4 pieces[kTiles][2];
  uint32_t scale_words[kTiles][2] = {};
  float part[kTiles][kTokenTiles][4] = {};
  float x_sums[kTokenTiles][4] = {};  // the sum of a token's elements in the group, in each row
  constexpr bool kHasOdd = kTiles * kTokenTiles == 1;
  float odd_part[4] = {}, odd_x_sums[4] = {};
#pragma unroll
  for (int i = 0; i < kGroups; ++i) {
#pragma unroll
    for (int r = 0; r < kTiles; ++r)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        if (i % kPerPiece == 0)
          pieces[r][half] =
              load_shared(mine + ((r * 2 + half) * kPieces + i / kPerPiece) * kPieceBytes);
        if (Format::kScaled && i % kPerScale == 0)
          scale_words[r][half] = load_shared_word(words + i / kPerScale * kGroupWordBytes<kTiles> +
                                                  (r * 16 + half * 8) * 4);
      }
    uint32_t upper[kTiles][4], lower[kTiles][4];
#pragma unroll
    for (int r = 0; r < kTiles; ++r) {
      if constexpr (Format::kHasOffset) {
        Format::unpack_raw(pieces[r][0], i, upper[r]);
        Format::unpack_raw(pieces[r][1], i, lower[r]);
      } else {
        Format::unpack(pieces[r][0], i, Format::zero(scale_words[r][0]), upper[r]);
        Format::unpack(pieces[r][1], i, Format::zero(scale_words[r][1]), lower[r]);
      }
    }
#pragma unroll
    for (int j = 0; j < 4; j += 2)
#pragma unroll
      for (int t = 0; t < kTokenTiles; ++t) {
        const uint32_t b[2] = {word(x[t][i], j), word(x[t][i], j + 1)};
        if constexpr (Format::kHasOffset) {
          constexpr uint32_t kOnes = 0x3f803f80;  // two bfloat16
          mma_16x8x16<T>(kHasOdd && j > 0 ? odd_x_sums : x_sums[t], {kOnes, kOnes, kOnes, kOnes},
                         b[0], b[1]);
        }
#pragma unroll
        for (int r = 0; r < kTiles; ++r) {
          const bool is_odd = kHasOdd && j > 0;
          float(&scaled)[4] = is_odd ? odd_part : part[r][t];
          float(&plain)[4] = is_odd ? odd : acc[r][t];
          mma_16x8x16<T>(Format::kScaled ? scaled : plain,
                         {upper[r][j], lower[r][j], upper[r][j + 1], lower[r][j + 1]}, b[0], b[1]);
        }
      }
    if constexpr (Format::kScaled) {
      if ((i + 1) % kPerScale != 0) continue;
      if constexpr (kHasOdd) {
#pragma unroll
        for (int c = 0; c < 4; ++c) {
          part[0][0][c] += odd_part[c], odd_part[c] = 0;
          x_sums[0][c] += odd_x_sums[c], odd_x_sums[c] = 0;
        }
      }
#pragma unroll
      for (int r = 0; r < kTiles; ++r)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const float scale = Format::scale(weight, scale_words[r][half]);
          float offset = 0;
          if constexpr (Format::kHasOffset) offset = Format::offset(scale_words[r][half]);
#pragma unroll
          for (int t = 0; t < kTokenTiles; ++t)
#pragma unroll
            for (int c = 0; c < 2; ++c) {
              float& sum = part[r][t][2 * half + c];
              if constexpr (Format::kHasOffset) sum += offset * x_sums[t][c];
              acc[r][t][2 * half + c] += scale * sum;
              sum = 0;
            }
        }
#pragma unroll
      for (int t = 0; t < kTokenTiles; ++t)
#pragma unroll
        for (float& sum : x_sums[t]) sum = 0;
    }
  }
}

/// Floats from one token's sums to the next one's, so that there are no bank conflicts.
inline constexpr int kSumPitch = 20;
/// Writes a warp's sums [tiles, tokens, kSumPitch].
template <int kTiles, int kTokenTiles>
__device__ __forceinline__ void store_sums(float* sums,
                                           const float (&acc)[kTiles][kTokenTiles][4]) {
  const int quad = threadIdx.x % 32 / 4, pair = threadIdx.x % 4;
#pragma unroll
  for (int r = 0; r < kTiles; ++r)
#pragma unroll
    for (int t = 0; t < kTokenTiles; ++t)
#pragma unroll
      for (int i = 0; i < 4; ++i)
        sums[((r * kTokenTiles + t) * 8 + 2 * pair + i % 2) * kSumPitch + quad + i / 2 * 8] =
            acc[r][t][i];
}

}  // namespace nanovllm::cuda
