#pragma once

#include <algorithm>

#include "nanovllm/ops/cuda/kv_layout.cuh"
#include "nanovllm/ops/cuda/mma.cuh"

// What both kernels of decode attention share: a warp's query rows, all heads of one KV head,
// against 16 keys at a time, which lie in shared memory as they do in the cache.
namespace nanovllm::cuda {

inline constexpr int kDecodeKeys = 16;
template <int kHeadDim>
inline constexpr int kDecodeStageBytes = 2 * kDecodeKeys* kHeadDim * 2;  // K, then V
template <int kHeadDim>
inline constexpr int kDecodeStages = std::max(2, 24576 / kDecodeStageBytes<kHeadDim>);

/// Up to 16 query rows of one warp with an online softmax. Source of the latter: Milakov and
/// Gimelshein, "Online normalizer calculation for softmax", 2018.
template <class T, int kHeadDim>
struct DecodeRows {
  static constexpr int kWidth = kHeadDim + 2;  // what save() writes of a row

  uint32_t q[kHeadDim / 16][4];  // as mma.cuh has it; rows beyond the group are zero
  float max[2] = {-INFINITY, -INFINITY}, sum[2] = {0, 0};
  float acc[kHeadDim / 8][4] = {};

  /// 16 keys and values at these shared addresses, of which the first `num_keys` count; `scale`
  /// makes powers of two.
  __device__ void add(uint32_t k, uint32_t v, int num_keys, float scale) {
    const int lane = threadIdx.x % 32, pair = lane % 4;
    // ldmatrix: lane l addresses row l % 8 of matrix l / 8. For K two matrices are neighbours in
    // d, for V in keys.
    const int matrix = lane / 8, matrix_row = lane % 8;
    k += matrix / 2 * (8 * kHeadDim * 2) + matrix_row * 128;
    v += matrix % 2 * (8 * kHeadDim * 2) + matrix_row * 128;
    const auto chunk_at = [&](int chunk) {
      return static_cast<uint32_t>(chunk / 8 * 1024 + ((chunk % 8) ^ matrix_row) * 16);
    };
    float s[2][4] = {};
#pragma unroll
    for (int i = 0; i < kHeadDim / 16; ++i) {
      uint32_t b[4];
      ldmatrix_x4(b, k + chunk_at(2 * i + matrix % 2));
      mma_16x8x16<T>(s[0], q[i], b[0], b[1]);
      mma_16x8x16<T>(s[1], q[i], b[2], b[3]);
    }
    if (num_keys < kDecodeKeys) {
#pragma unroll
      for (int n = 0; n < 2; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i)
          if (n * 8 + 2 * pair + i % 2 >= num_keys) s[n][i] = -INFINITY;
    }
    uint32_t weights[4];
    float shrink[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float m = fmaxf(fmaxf(s[0][2 * half], s[0][2 * half + 1]),
                      fmaxf(s[1][2 * half], s[1][2 * half + 1]));
      m = fmaxf(m, __shfl_xor_sync(0xffffffff, m, 1));
      m = fmaxf(m, __shfl_xor_sync(0xffffffff, m, 2)) * scale;
      m = fmaxf(m, max[half]);
      shrink[half] = exp2f(max[half] - m);
      max[half] = m;
      float w[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) w[i] = exp2f(s[i / 2][2 * half + i % 2] * scale - m);
      sum[half] = sum[half] * shrink[half] + ((w[0] + w[1]) + (w[2] + w[3]));
      weights[half] = hopper::pack<T>(w[0], w[1]);
      weights[2 + half] = hopper::pack<T>(w[2], w[3]);
    }
    if (__any_sync(0xffffffff, shrink[0] != 1 || shrink[1] != 1)) {
#pragma unroll
      for (int n = 0; n < kHeadDim / 8; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i) acc[n][i] *= shrink[i / 2];
    }
#pragma unroll
    for (int j = 0; j < kHeadDim / 16; ++j) {
      uint32_t b[4];
      ldmatrix_x4_trans(b, v + chunk_at(2 * j + matrix / 2));
      if (num_keys < kDecodeKeys) {  // weight 0 times what a stale value may be is not 0
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int key = i % 2 * 8 + 2 * pair;
          if (key >= num_keys) b[i] = 0;
          else if (key + 1 >= num_keys) b[i] &= 0xffff;
        }
      }
      mma_16x8x16<T>(acc[2 * j], weights, b[0], b[1]);
      mma_16x8x16<T>(acc[2 * j + 1], weights, b[2], b[3]);
    }
  }

  /// Writes the first `group` rows [group, kWidth]: sums, then maximum and sum of weights.
  __device__ void save(float* to, int group) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      sum[half] += __shfl_xor_sync(0xffffffff, sum[half], 1);
      sum[half] += __shfl_xor_sync(0xffffffff, sum[half], 2);
      const int row = lane / 4 + half * 8;
      if (row >= group) continue;
#pragma unroll
      for (int n = 0; n < kHeadDim / 8; ++n)
        *reinterpret_cast<float2*>(to + row * kWidth + n * 8 + 2 * (lane % 4)) =
            make_float2(acc[n][2 * half], acc[n][2 * half + 1]);
      if (lane % 4 == 0)
        *reinterpret_cast<float2*>(to + row * kWidth + kHeadDim) =
            make_float2(max[half], sum[half]);
    }
  }
};

/// A sum of weighted values, and what it takes to merge it with others.
struct DecodePart {
  float value = 0, max = -INFINITY, total = 0;
};
/// Element `d` of `row` over `num_parts` of DecodeRows::save's, `stride` floats apart.
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
