#pragma once

#include <algorithm>

#include "nanovllm/ops/cuda/attention/kv_layout.cuh"
#include "nanovllm/ops/cuda/device/mma.cuh"

// What both kernels of decode attention share: a warp's query heads, all of one KV head, against 16
// keys at a time, which lie in shared memory as they do in the cache.
namespace nanovllm::cuda {

inline constexpr int kDecodeKeys = 16;
template <int kHeadDim>
inline constexpr int kDecodeStageBytes = 2 * kDecodeKeys* kHeadDim * 2;  // K, then V
template <int kHeadDim>
inline constexpr int kDecodeStages = std::max(2, 24576 / kDecodeStageBytes<kHeadDim>);

/// Up to 8 kEights query heads of one warp with an online softmax. Heads are the columns of the
/// tensor cores' products, which come in eights, and keys or dims of values their rows, so that the
/// products waste least. Source of the softmax: Milakov and Gimelshein, "Online normalizer
/// calculation for softmax", 2018.
template <class T, int kHeadDim, int kEights>
struct DecodeHeads {
  static constexpr int kWidth = kHeadDim + 2;  // what save() writes of a head

  uint32_t q[kHeadDim / 8][kEights];  // as mma.cuh has b; zero beyond the group
  float max[kEights][2], sum[kEights][2] = {};
  float acc[kHeadDim / 16][kEights][4] = {};

  __device__ DecodeHeads() {
#pragma unroll
    for (int e = 0; e < kEights; ++e) max[e][0] = max[e][1] = -INFINITY;
  }

  /// 16 keys and values at these shared addresses, multiples of 128, of which the first `num_keys`
  /// count; `scale` makes powers of two.
  __device__ void add(uint32_t k, uint32_t v, int num_keys, float scale) {
    const int lane = threadIdx.x % 32;
    // ldmatrix: lane l addresses row l % 8 of matrix l / 8. For K two matrices are neighbours in
    // keys, for V in d.
    const int matrix = lane / 8, matrix_row = lane % 8;
    k += matrix % 2 * (8 * kHeadDim * 2) + matrix_row * 128 + ((matrix / 2) ^ matrix_row) * 16;
    v += matrix / 2 * (8 * kHeadDim * 2) + matrix_row * 128 + ((matrix % 2) ^ matrix_row) * 16;
    float s[kEights][4] = {}, odd[kEights][4] = {};  // two, so that half as many wait in a row
#pragma unroll
    for (int i = 0; i < kHeadDim / 16; ++i) {
      uint32_t a[4];
      ldmatrix_x4(a, chunks_at(k, i));
#pragma unroll
      for (int e = 0; e < kEights; ++e)
        mma_16x8x16<T>(i % 2 == 0 ? s[e] : odd[e], a, q[2 * i][e], q[2 * i + 1][e]);
    }
    uint32_t weights[kEights][2];
    float shrink[kEights][2];
    bool shrinks = false;
#pragma unroll
    for (int e = 0; e < kEights; ++e) {
      float w[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        s[e][i] += odd[e][i];
        if (num_keys < kDecodeKeys && lane / 4 + i / 2 * 8 >= num_keys) s[e][i] = -INFINITY;
      }
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        float m = fmaxf(s[e][i], s[e][2 + i]);
#pragma unroll
        for (int other = 4; other < 32; other *= 2)
          m = fmaxf(m, __shfl_xor_sync(0xffffffff, m, other));
        m = fmaxf(m * scale, max[e][i]);
        shrink[e][i] = hopper::exp2_approx(max[e][i] - m);
        shrinks |= shrink[e][i] != 1;
        max[e][i] = m;
        w[i] = hopper::exp2_approx(s[e][i] * scale - m);
        w[2 + i] = hopper::exp2_approx(s[e][2 + i] * scale - m);
        sum[e][i] = sum[e][i] * shrink[e][i] + (w[i] + w[2 + i]);
      }
      weights[e][0] = transpose_8x8(hopper::pack<T>(w[0], w[1]));
      weights[e][1] = transpose_8x8(hopper::pack<T>(w[2], w[3]));
    }
    if (__any_sync(0xffffffff, shrinks)) {
#pragma unroll
      for (int j = 0; j < kHeadDim / 16; ++j)
#pragma unroll
        for (int e = 0; e < kEights; ++e)
#pragma unroll
          for (int i = 0; i < 4; ++i) acc[j][e][i] *= shrink[e][i % 2];
    }
    // A branch for each of these would keep their loads apart.
    if (num_keys < kDecodeKeys) add_values<true>(v, num_keys, weights);
    else add_values<false>(v, num_keys, weights);
  }

  /// Writes the first `group` heads [group, kWidth]: sums, then maximum and sum of weights.
  __device__ void save(float* to, int group) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int e = 0; e < kEights; ++e)
#pragma unroll
      for (int i = 0; i < 2; ++i) {
#pragma unroll
        for (int other = 4; other < 32; other *= 2)
          sum[e][i] += __shfl_xor_sync(0xffffffff, sum[e][i], other);
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
  /// `first` with its chunk of 16 bytes moved by 2 i: inside a row of 64 dims by XOR, as the
  /// swizzle has it, then on to the next 64.
  __device__ static uint32_t chunks_at(uint32_t first, int i) {
    return (first ^ i % 4 * 32) + i / 4 * 1024;
  }

  template <bool kMasked>
  __device__ __forceinline__ void add_values(uint32_t v, int num_keys,
                                             const uint32_t (&weights)[kEights][2]) {
#pragma unroll
    for (int j = 0; j < kHeadDim / 16; ++j) {
      uint32_t a[4];
      ldmatrix_x4_trans(a, chunks_at(v, j));
      if constexpr (kMasked) {  // weight 0 times what a stale value may be is not 0
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int key = i / 2 * 8 + 2 * (static_cast<int>(threadIdx.x) % 4);
          if (key >= num_keys) a[i] = 0;
          else if (key + 1 >= num_keys) a[i] &= 0xffff;
        }
      }
#pragma unroll
      for (int e = 0; e < kEights; ++e) mma_16x8x16<T>(acc[j][e], a, weights[e][0], weights[e][1]);
    }
  }

  /// Of a lane's two columns.
  __device__ static int head_of(int e, int i) {
    return e * 8 + static_cast<int>(threadIdx.x) % 4 * 2 + i;
  }
};

/// A sum of weighted values, and what it takes to merge it with others.
struct DecodePart {
  float value = 0, max = -INFINITY, total = 0;
};
/// Element `d` of `row` over `num_parts` of DecodeHeads::save's, `stride` floats apart.
template <int kNumParts>
__device__ inline DecodePart merge_parts(const float* row, int stride, int d, int head_dim) {
  DecodePart part;
#pragma unroll
  for (int i = 0; i < kNumParts; ++i) part.max = fmaxf(part.max, row[i * stride + head_dim]);
#pragma unroll
  for (int i = 0; i < kNumParts; ++i) {
    const float* const from = row + i * stride;
    // Whoever had no keys has the maximum -infinity.
    const float share = from[head_dim] == -INFINITY ? 0 : exp2f(from[head_dim] - part.max);
    part.total += from[head_dim + 1] * share;
    part.value += from[d] * share;
  }
  return part;
}

}  // namespace nanovllm::cuda
