#pragma once

#include <algorithm>

#include "nanovllm/ops/cuda/attention/kv_layout.cuh"
#include "nanovllm/ops/cuda/device/mma.cuh"

// What both kernels of decode attention share: a warp computes the query heads of one KV head for
// 16 keys at a time, which have the same layout in shared memory as in the cache (kv_layout.cuh).
namespace nanovllm::cuda {

inline constexpr int kDecodeKeys = 16;  // that a warp computes at a time
/// A stage of one warp: K of its keys, then V.
template <int kHeadDim>
inline constexpr int kDecodeStageBytes = 2 * kDecodeKeys* kHeadDim * 2;
template <int kHeadDim>
inline constexpr int kDecodeStages = std::max(2, 24576 / kDecodeStageBytes<kHeadDim>);

/// The online softmax of a warp's query heads, up to 8 * kHeadTiles. The 16 rows of the m16n8k16
/// instruction are keys (or dimensions of values), and its 8 columns are query heads, since a KV
/// head often has 8 query heads or fewer; with heads as rows twice as many instructions would be
/// needed. Source of the softmax: Milakov and Gimelshein, "Online normalizer calculation for
/// softmax", 2018.
template <class T, int kHeadDim, int kHeadTiles>
struct DecodeHeads {
  static constexpr int kWidth = kHeadDim + 2;  // floats that save() writes for a head

  uint32_t q[kHeadDim / 8]
            [kHeadTiles];  // the operand b of mma.cuh; zero for heads that do not exist
  float max[kHeadTiles][2], sum[kHeadTiles][2] = {};
  float acc[kHeadDim / 16][kHeadTiles][4] = {};

  __device__ DecodeHeads() {
#pragma unroll
    for (int e = 0; e < kHeadTiles; ++e) max[e][0] = max[e][1] = -INFINITY;
  }

  /// Adds 16 keys and values, which are at these shared addresses (multiples of 128). Only the
  /// first `num_keys` are valid. `scale` contains log2(e), so that weights are powers of two.
  __device__ void add(uint32_t k, uint32_t v, int num_keys, float scale) {
    const int lane = threadIdx.x % 32;
    // ldmatrix: lane l addresses row l % 8 of matrix l / 8. Matrices 0 and 1 are neighbours in keys
    // for K, in dimensions for V.
    const int matrix = lane / 8, matrix_row = lane % 8;
    k += matrix % 2 * (8 * kHeadDim * 2) + matrix_row * 128 + ((matrix / 2) ^ matrix_row) * 16;
    v += matrix / 2 * (8 * kHeadDim * 2) + matrix_row * 128 + ((matrix % 2) ^ matrix_row) * 16;
    // Two sums halve the chain of dependent instructions.
    float s[kHeadTiles][4] = {}, odd[kHeadTiles][4] = {};
#pragma unroll
    for (int i = 0; i < kHeadDim / 16; ++i) {
      uint32_t a[4];
      ldmatrix_x4(a, chunks_at(k, i));
#pragma unroll
      for (int e = 0; e < kHeadTiles; ++e)
        mma_16x8x16<T>(i % 2 == 0 ? s[e] : odd[e], a, q[2 * i][e], q[2 * i + 1][e]);
    }
    uint32_t weights[kHeadTiles][2];
    float shrink[kHeadTiles][2];
    bool shrinks = false;
#pragma unroll
    for (int e = 0; e < kHeadTiles; ++e) {
      float w[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        s[e][i] += odd[e][i];
        if (num_keys < kDecodeKeys && lane / 4 + i / 2 * 8 >= num_keys) s[e][i] = -INFINITY;
      }
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        float m = column_reduce(fmaxf(s[e][i], s[e][2 + i]), Max());
        m = fmaxf(m * scale, max[e][i]);
        shrink[e][i] = exp2_approx(max[e][i] - m);
        shrinks |= shrink[e][i] != 1;
        max[e][i] = m;
        w[i] = exp2_approx(s[e][i] * scale - m);
        w[2 + i] = exp2_approx(s[e][2 + i] * scale - m);
        sum[e][i] = sum[e][i] * shrink[e][i] + (w[i] + w[2 + i]);
      }
      weights[e][0] = transpose_8x8(pack<T>(w[0], w[1]));
      weights[e][1] = transpose_8x8(pack<T>(w[2], w[3]));
    }
    if (__any_sync(kAllLanes, shrinks)) {
#pragma unroll
      for (int j = 0; j < kHeadDim / 16; ++j)
#pragma unroll
        for (int e = 0; e < kHeadTiles; ++e)
#pragma unroll
          for (int i = 0; i < 4; ++i) acc[j][e][i] *= shrink[e][i % 2];
    }
    // One branch around all loads: a branch for each would keep the compiler from grouping them.
    if (num_keys < kDecodeKeys) add_values<true>(v, num_keys, weights);
    else add_values<false>(v, num_keys, weights);
  }

  /// Writes the first `group` heads as [group, kWidth] floats: weighted sums, then the maximum and
  /// the sum of weights.
  __device__ void save(float* to, int group) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int e = 0; e < kHeadTiles; ++e)
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        sum[e][i] = column_reduce(sum[e][i], Sum());
        if (head_of(e, i) >= group) continue;
        float* const row = to + head_of(e, i) * kWidth;
#pragma unroll
        for (int j = 0; j < kHeadDim / 16; ++j) {
          row[j * 16 + lane / 4] = acc[j][e][i];
          row[j * 16 + lane / 4 + 8] = acc[j][e][2 + i];
        }
        if (lane / 4 == 0)
          *reinterpret_cast<float2*>(row + kHeadDim) = make_float2(max[e][i], sum[e][i]);
      }
  }

 private:
  /// `first` moved by 2 i chunks of 16 bytes: inside a row of 64 dimensions by XOR, because of the
  /// swizzle, and 1,024 bytes further on for the next 64.
  __device__ static uint32_t chunks_at(uint32_t first, int i) {
    return (first ^ i % 4 * 32) + i / 4 * 1024;
  }

  template <bool kMasked>
  __device__ __forceinline__ void add_values(uint32_t v, int num_keys,
                                             const uint32_t (&weights)[kHeadTiles][2]) {
#pragma unroll
    for (int j = 0; j < kHeadDim / 16; ++j) {
      uint32_t a[4];
      ldmatrix_x4_trans(a, chunks_at(v, j));
      if constexpr (kMasked) {  // stale values may be NaN, and 0 * NaN is NaN
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int key = i / 2 * 8 + 2 * (static_cast<int>(threadIdx.x) % 4);
          if (key >= num_keys) a[i] = 0;
          else if (key + 1 >= num_keys) a[i] &= 0xffff;
        }
      }
#pragma unroll
      for (int e = 0; e < kHeadTiles; ++e)
        mma_16x8x16<T>(acc[j][e], a, weights[e][0], weights[e][1]);
    }
  }

  /// The query head of a lane's accumulator column i of tile e.
  __device__ static int head_of(int e, int i) {
    return e * 8 + static_cast<int>(threadIdx.x) % 4 * 2 + i;
  }
};

/// A partial result, over some of a head's keys: one element of the weighted sum of values, the
/// largest score, and the sum of weights.
struct DecodePart {
  float value = 0, max = -INFINITY, total = 0;
};
/// Merges element `d` of kNumParts rows that DecodeHeads::save() wrote, `stride` floats apart.
template <int kNumParts>
__device__ inline DecodePart merge_parts(const float* row, int stride, int d, int head_dim) {
  DecodePart part;
#pragma unroll
  for (int i = 0; i < kNumParts; ++i) part.max = fmaxf(part.max, row[i * stride + head_dim]);
#pragma unroll
  for (int i = 0; i < kNumParts; ++i) {
    const float* const from = row + i * stride;
    // A part without keys has the maximum -infinity.
    const float weight = from[head_dim] == -INFINITY ? 0 : exp2f(from[head_dim] - part.max);
    part.total += from[head_dim + 1] * weight;
    part.value += from[d] * weight;
  }
  return part;
}

/// Calls use(row, d, part) for the elements of `group` heads, whose partial results the kNumWarps
/// warps of these threads have saved, `stride` floats apart. A thread merges kAtOnce elements
/// before it uses the first one, so that their chains of dependent instructions overlap: stores in
/// between would keep the compiler from moving loads.
template <int kNumWarps, int kHeadDim, int kAtOnce, class Use>
__device__ inline void merge_warps(const float* saved, int stride, int group, Use use) {
  constexpr int kWidth = kHeadDim + 2, kThreads = kNumWarps * 32;
  const int num_elements = group * kHeadDim;
  for (int first = threadIdx.x; first < num_elements; first += kAtOnce * kThreads) {
    DecodePart parts[kAtOnce];
#pragma unroll
    for (int e = 0; e < kAtOnce; ++e) {
      // Without a branch: instead of an element that does not exist, the first one is merged again.
      const int i = first + e * kThreads < num_elements ? first + e * kThreads : first;
      parts[e] =
          merge_parts<kNumWarps>(saved + i / kHeadDim * kWidth, stride, i % kHeadDim, kHeadDim);
    }
#pragma unroll
    for (int e = 0; e < kAtOnce; ++e) {
      const int i = first + e * kThreads;
      if (i < num_elements) use(i / kHeadDim, i % kHeadDim, parts[e]);
    }
  }
}

}  // namespace nanovllm::cuda
