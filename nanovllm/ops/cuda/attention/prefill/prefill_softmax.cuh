#pragma once

#include "nanovllm/ops/cuda/device/device.cuh"

// The work of a warpgroup of prefill_sm90.cu on its scores and sums outside the tensor cores: the
// online softmax, the causal mask and the output. Scores and sums are in the threads' registers as
// wgmma leaves them (wgmma.cuh).
namespace nanovllm::cuda::prefill {

/// Sums are rescaled when a score exceeds their maximum by more than this, in powers of two.
inline constexpr float kRescaleLog2 = 8;

/// The online softmax of a thread's two rows, lane / 4 and the row 8 below. Four threads (a quad)
/// share the columns of a row.
struct Softmax {
  float maximum[2];
  float sum[2];  // over this thread's columns only

  __device__ void reset() {
    maximum[0] = maximum[1] = -INFINITY;
    sum[0] = sum[1] = 0;
  }

  /// Raises the maxima of rows whose scores in a block exceed them by more than kRescaleLog2, which
  /// is rare after the first block. Returns false if no row of the warp has such scores; otherwise,
  /// earlier sums have to be multiplied by `factors`.
  template <int kCount>
  __device__ bool raise_maxima(const float (&s)[kCount], float scale_log2, float2& factors) {
    int bits[2];
    largest(s, bits);
    bool may_grow = false;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      // Where all scores are negative, only a negative maximum could grow.
      const bool unknown = bits[r] < 0 && maximum[r] < 0;
      may_grow |= unknown || exceeds(__int_as_float(bits[r]), r, scale_log2);
    }
    if (!__any_sync(kAllLanes, may_grow)) return false;

    float block_max[2] = {-INFINITY, -INFINITY};
#pragma unroll
    for (int i = 0; i < kCount; ++i) block_max[i / 2 % 2] = fmaxf(block_max[i / 2 % 2], s[i]);
    float factor[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      block_max[r] = quad_reduce(block_max[r], Max());
      const bool grow = exceeds(block_max[r], r, scale_log2);
      factor[r] = grow ? exp2_approx((maximum[r] - block_max[r]) * scale_log2) : 1.f;
      maximum[r] = grow ? block_max[r] : maximum[r];
      sum[r] *= factor[r];
    }
    factors = {factor[0], factor[1]};
    return true;
  }

  /// Turns the scores kFirst .. kEnd - 1 into weights.
  template <int kFirst, int kEnd, int kCount>
  __device__ void weigh(float (&s)[kCount], float scale_log2) {
    float shift[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      // If a row has seen no key yet, any finite shift gives weights of 0.
      shift[r] = maximum[r] == -INFINITY ? 0.f : maximum[r] * scale_log2;
    }
#pragma unroll
    for (int i = kFirst; i < kEnd; ++i) {
      s[i] = exp2_approx(fmaf(s[i], scale_log2, -shift[i / 2 % 2]));
      sum[i / 2 % 2] += s[i];
    }
  }

 private:
  __device__ bool exceeds(float score, int r, float scale_log2) const {
    return (score - maximum[r]) * scale_log2 > kRescaleLog2;
  }

  /// The bits of the largest of the thread's scores of each row; if all are negative, the bits of
  /// any negative one. Floats are compared as integers, because one instruction compares three of
  /// those, and negative floats have the opposite order.
  template <int kCount>
  __device__ static void largest(const float (&s)[kCount], int (&bits)[2]) {
    constexpr int kChains = 4;  // comparisons of a row that do not wait for each other
    int part[2][kChains];
#pragma unroll
    for (int i = 0; i < kCount; i += 2) {
      int& chain = part[i / 2 % 2][i / 4 % kChains];
      const int pair = max(__float_as_int(s[i]), __float_as_int(s[i + 1]));
      chain = i < 4 * kChains ? pair : max(chain, pair);
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      bits[r] = part[r][0];
#pragma unroll
      for (int i = 1; i < kChains; ++i) bits[r] = max(bits[r], part[r][i]);
    }
  }
};

/// The causal mask: the upper row sees the keys before `limit`, counted from the first key of the
/// key block; the lower row sees 8 more.
template <int kCount>
__device__ __forceinline__ void mask(float (&s)[kCount], int limit) {
  limit -= 2 * (threadIdx.x % 4);
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    const int column = i / 4 * 8 + i % 2;
    if (column >= limit + (i / 2 % 2) * 8) s[i] = -INFINITY;
  }
}

/// Divides the rows by their sums and writes them. The threads of a quad have a row's columns in
/// pairs and exchange them, so that each thread stores 16 contiguous bytes.
template <class T, int kHeadDim>
__device__ __forceinline__ void write_rows(const float (&o)[kHeadDim / 2], const float (&sums)[2],
                                           T* out, int64_t row_stride, int num_rows) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const float sum = quad_reduce(sums[r], Sum());
    const float factor = sum > 0 ? __fdividef(1.f, sum) : 0.f;
    const int row = lane / 4 + 8 * r;
    T* to = out + row * row_stride + lane % 4 * 8;
#pragma unroll
    for (int j = 0; j < kHeadDim / 8; j += 4) {
      const auto word = [&](int i) {
        return pack<T>(o[4 * (j + i) + 2 * r] * factor, o[4 * (j + i) + 2 * r + 1] * factor);
      };
      const uint4 words = transpose_quad(word(0), word(1), word(2), word(3));
      if (row < num_rows) __stcs(reinterpret_cast<uint4*>(to + j * 8), words);
    }
  }
}

}  // namespace nanovllm::cuda::prefill
