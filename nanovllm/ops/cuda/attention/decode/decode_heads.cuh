#pragma once

#include <algorithm>

#include "nanovllm/ops/cuda/attention/attention.h"
#include "nanovllm/ops/cuda/attention/kv_store.cuh"
#include "nanovllm/ops/cuda/device/mma.cuh"

// The code that both kernels of decode attention share: a warp computes the query heads of one KV
// head for 16 keys at a time, which have the same layout in shared memory as in the cache
// (kv_layout.cuh). C is the type of the cache's elements.
namespace nanovllm::cuda {

inline constexpr int kDecodeKeys = 16;  // keys that a warp computes at a time
static_assert(kDecodeKeys == kScaledKeys);
template <class C, int kHeadDim>
inline constexpr int kKeyBytes = kHeadDim* static_cast<int>(sizeof(C)) + (kIsE4m3<C> ? 4 : 0);
/// A stage of one warp: K of its keys, then V.
template <class C, int kHeadDim>
inline constexpr int kDecodeStageBytes = 2 * kDecodeKeys* kKeyBytes<C, kHeadDim>;
template <class C, int kHeadDim>
inline constexpr int kDecodeStages = std::max(2, 24576 / kDecodeStageBytes<C, kHeadDim>);

/// The online softmax of a warp's query heads, up to 8 * kHeadTiles. The 16 rows of the m16n8k16
/// instruction are keys (or dimensions of values), and its 8 columns are query heads, since a KV
/// head often has 8 query heads or fewer; with heads as rows twice as many instructions would be
/// needed. Source of the softmax: Milakov and Gimelshein, "Online normalizer calculation for
/// softmax", 2018.
///
/// Elements of e4m3 are converted to halfs in registers, and q is too, times the scale of the
/// softmax, so that it does not overflow. A key's scale multiplies its scores, a value's scale its
/// weights. Halfs must not be tiny: weights are relative to the largest product of a weight and a
/// scale instead of the largest weight.
template <class T, class C, int kHeadDim, int kHeadTiles>
struct DecodeHeads {
  using Operand = std::conditional_t<kIsE4m3<C>, F16, T>;  // type that the tensor cores multiply
  /// Floats of a head for save(): rows are aligned, and save() meets no bank conflict.
  static constexpr int kPitch = kHeadDim + 4;

  /// The operand b of mma.cuh; zero for heads that do not exist.
  uint32_t q[kHeadDim / 8][kHeadTiles];
  float max[kHeadTiles][2], sum[kHeadTiles][2] = {};
  float acc[kHeadDim / 16][kHeadTiles][4] = {};

  __device__ DecodeHeads() {
#pragma unroll
    for (int e = 0; e < kHeadTiles; ++e) max[e][0] = max[e][1] = -INFINITY;
  }

  /// Loads q of `group` heads, which are `pitch` elements apart. `scale` is also add()'s argument.
  __device__ void load_queries(const T* heads, int pitch, int group, float scale) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int e = 0; e < kHeadTiles; ++e) {
      const bool exists = e * 8 + lane / 4 < group;
      const T* const head = heads + (e * 8 + lane / 4) * pitch;
#pragma unroll
      for (int i = 0; i < kHeadDim / 16; ++i) {
        // The order of k in a matrix instruction is free: each lane has four neighbours of e4m3.
        const int low = i * 16 + lane % 4 * (kIsE4m3<C> ? 4 : 2), high = low + (kIsE4m3<C> ? 2 : 8);
        const auto pair = [&](int d) {
          if (!exists) return 0u;
          const auto x = load<2>(head + d);
          if constexpr (!kIsE4m3<C>) return bits_as<uint32_t>(x);
          else return pack<F16>(to_float(x.x[0]) * scale, to_float(x.x[1]) * scale);
        };
        q[2 * i][e] = pair(low);
        q[2 * i + 1][e] = pair(high);
      }
    }
  }

  /// Adds 16 keys and values, which are at these shared addresses (multiples of 128, or of 16 if
  /// they are e4m3). Only the first `num_keys` are valid. `scale` contains log2(e), so that weights
  /// are powers of two.
  __device__ void add(uint32_t k, uint32_t v, int num_keys, float scale) {
    const int lane = threadIdx.x % 32;
    // ldmatrix: lane l addresses row l % 8 of matrix l / 8. Matrices 0 and 1 are neighbours in keys
    // for K, in dimensions for V; in keys for both if they are e4m3.
    const int matrix = lane / 8, matrix_row = lane % 8;
    uint32_t chunk = 0;  // the place of this lane's 16 bytes in a row of e4m3
    // The scales of keys lane / 4 and lane / 4 + 8. `lift` is log2 of the value's scale.
    float key_scale[2] = {1, 1}, value_scale[2] = {1, 1}, lift[2] = {0, 0};
    if constexpr (kIsE4m3<C>) {
      scale = 1;  // q contains it
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int key = lane / 4 + i * 8, at = kDecodeKeys * kHeadDim + key * 4;
        key_scale[i] = __uint_as_float(load_shared_word(k + at));
        value_scale[i] = key < num_keys ? __uint_as_float(load_shared_word(v + at)) : 0;
        lift[i] = __log2f(value_scale[i]);
      }
      chunk = ((matrix / 2) ^ (kHeadDim == 64 ? matrix_row / 2 : matrix_row)) * 16;
      k += (matrix % 2 * 8 + matrix_row) * kHeadDim;
      v += (matrix % 2 * 8 + matrix_row) * kHeadDim;
    } else {
      k += matrix % 2 * (8 * kHeadDim * 2) + matrix_row * 128 + ((matrix / 2) ^ matrix_row) * 16;
      v += matrix / 2 * (8 * kHeadDim * 2) + matrix_row * 128 + ((matrix % 2) ^ matrix_row) * 16;
    }
    // Two sums halve the chain of dependent instructions.
    float s[kHeadTiles][4] = {}, odd[kHeadTiles][4] = {};
    uint32_t raw[4];  // e4m3 elements of two operands
#pragma unroll
    for (int i = 0; i < kHeadDim / 16; ++i) {
      uint32_t a[4];
      if constexpr (kIsE4m3<C>) {
        if (i % 2 == 0) ldmatrix_x4(raw, k + (chunk ^ i * 16));
#pragma unroll
        for (int j = 0; j < 2; ++j) e4m3_to_halfs(raw[i % 2 * 2 + j], a[j], a[2 + j]);
      } else {
        ldmatrix_x4(a, chunks_at(k, i));
      }
#pragma unroll
      for (int e = 0; e < kHeadTiles; ++e)
        mma_16x8x16<Operand>(i % 2 == 0 ? s[e] : odd[e], a, q[2 * i][e], q[2 * i + 1][e]);
    }
    uint32_t weights[kHeadTiles][2];
    float shrink[kHeadTiles][2];
    bool shrinks = false;
#pragma unroll
    for (int e = 0; e < kHeadTiles; ++e) {
      float w[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        s[e][i] = (s[e][i] + odd[e][i]) * key_scale[i / 2];
        if (num_keys < kDecodeKeys && lane / 4 + i / 2 * 8 >= num_keys) s[e][i] = -INFINITY;
      }
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        float m = column_reduce(fmaxf(s[e][i] + lift[0], s[e][2 + i] + lift[1]), Max());
        m = fmaxf(m * scale, max[e][i]);
        shrink[e][i] = exp2_approx(max[e][i] - m);
        shrinks |= shrink[e][i] != 1;
        max[e][i] = m;
        w[i] = exp2_approx(s[e][i] * scale - m);
        w[2 + i] = exp2_approx(s[e][2 + i] * scale - m);
        sum[e][i] = sum[e][i] * shrink[e][i] + (w[i] + w[2 + i]);
      }
#pragma unroll
      for (int i = 0; i < 2; ++i)
        weights[e][i] =
            transpose_8x8(pack<Operand>(w[2 * i] * value_scale[i], w[2 * i + 1] * value_scale[i]));
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
    if (num_keys < kDecodeKeys) add_values<true>(v, chunk, num_keys, weights);
    else add_values<false>(v, chunk, num_keys, weights);
  }

  /// Writes the first `group` heads as [group, kPitch] floats: weighted sums, then the maximum and
  /// the sum of weights.
  __device__ void save(float* to, int group) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int e = 0; e < kHeadTiles; ++e)
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        sum[e][i] = column_reduce(sum[e][i], Sum());
        if (head_of(e, i) >= group) continue;
        float* const row = to + head_of(e, i) * kPitch;
#pragma unroll
        for (int j = 0; j < kHeadDim / 16; ++j) {
          const int d = j * 16 + lane / 4 * (kIsE4m3<C> ? 2 : 1);
          row[d] = acc[j][e][i];
          row[d + (kIsE4m3<C> ? 1 : 8)] = acc[j][e][2 + i];
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
  __device__ __forceinline__ void add_values(uint32_t v, uint32_t chunk, int num_keys,
                                             const uint32_t (&weights)[kHeadTiles][2]) {
    uint32_t raw[4];
#pragma unroll
    for (int j = 0; j < kHeadDim / 16; ++j) {
      uint32_t a[4];
      if constexpr (kIsE4m3<C>) {
        // A word has two neighbouring dimensions of two keys; rows of the operand alternate between
        // even and odd dimensions.
        if (j % 2 == 0) ldmatrix_x4_trans(raw, v + (chunk ^ j * 16));
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const uint32_t by_dimension = __byte_perm(raw[j % 2 * 2 + i], 0, 0x3120);
          e4m3_to_halfs(by_dimension, a[2 * i], a[2 * i + 1]);
        }
      } else {
        ldmatrix_x4_trans(a, chunks_at(v, j));
      }
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
        mma_16x8x16<Operand>(acc[j][e], a, weights[e][0], weights[e][1]);
    }
  }

  /// The query head of a lane's accumulator column i of tile e.
  __device__ static int head_of(int e, int i) {
    return e * 8 + static_cast<int>(threadIdx.x) % 4 * 2 + i;
  }
};

/// Neighbouring elements of a head that a thread merges at once.
inline constexpr int kMergeWidth = 4;

/// A partial result, over some of a head's keys: some elements of the weighted sum of values, the
/// largest score, and the sum of weights.
struct DecodePart {
  Vec<float, kMergeWidth> values = {};
  float max = -INFINITY, total = 0;
};
/// Merges the elements from d on of kNumParts rows that DecodeHeads::save() wrote, `stride` floats
/// apart.
template <int kNumParts, int kHeadDim>
__device__ inline DecodePart merge_parts(const float* row, int stride, int d) {
  DecodePart all;
  float2 parts[kNumParts];  // maximum, total
#pragma unroll
  for (int i = 0; i < kNumParts; ++i) {
    parts[i] = bits_as<float2>(load<2>(row + i * stride + kHeadDim));
    all.max = fmaxf(all.max, parts[i].x);
  }
#pragma unroll
  for (int i = 0; i < kNumParts; ++i) {
    // A part without keys has the maximum -infinity.
    const float weight = parts[i].x == -INFINITY ? 0 : exp2f(parts[i].x - all.max);
    const auto values = load<kMergeWidth>(row + i * stride + d);
    all.total += parts[i].y * weight;
#pragma unroll
    for (int j = 0; j < kMergeWidth; ++j) all.values.x[j] += values.x[j] * weight;
  }
  return all;
}

/// Stores neighbouring elements of attention's output, from `column` of row `token` on. If the
/// output is quantized too, all lanes of a warp call this together, for the 128 neighbours that
/// share a scale.
template <class T>
__device__ inline void store_output(const AttentionParams& p, int64_t token, int column,
                                    const float (&values)[kMergeWidth]) {
  static_assert(32 * kMergeWidth == kQuantizedChunk);
  const auto x = rounded<T>(values);
  store(static_cast<T*>(p.out) + token * p.num_heads * p.layout.head_dim + column, x);
  const QuantizedActivations& to = p.quantized_out;
  if (to.values == nullptr) return;
  const float scale = e4m3_scale(__reduce_max_sync(kAllLanes, largest_magnitude(x, 0)));
  store(static_cast<E4m3*>(to.values) + token * to.row_bytes + column,
        quantized(x, __fdividef(1, scale)));
  if (threadIdx.x % 32 == 0)
    to.scales[int64_t{column / kQuantizedChunk} * to.scale_stride + token] = scale;
}

}  // namespace nanovllm::cuda
