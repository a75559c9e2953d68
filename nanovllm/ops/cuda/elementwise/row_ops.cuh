#pragma once

#include "nanovllm/ops/cuda/device/device.cuh"

// The row operations as device functions on values in registers, for kernels that fuse them:
// RMSNorm, SwiGLU, and the rotary embedding. Each computes in float32 and rounds once, at its end.
// Kernels that fuse several of them round after each one, so that their results are those of
// separate kernels.
namespace nanovllm::cuda {

// -- RMSNorm: y = round(x * factor * weight), factor = 1 / sqrt(sum(x^2) / width + eps)

/// sum + x[0]^2 + x[1]^2 + ..., added in this order.
template <class T, int N>
__device__ inline float add_squares(const Vec<T, N>& x, float sum) {
#pragma unroll
  for (int i = 0; i < N; ++i) sum += to_float(x.x[i]) * to_float(x.x[i]);
  return sum;
}
__device__ inline float rms_factor(float squares, int width, float eps) {
  return rsqrtf(squares / static_cast<float>(width) + eps);
}
/// x times the row's factor, then times the weights.
template <class T, int N>
__device__ inline Vec<T, N> normed(const Vec<T, N>& x, float factor, const Vec<float, N>& weight) {
  float y[N];
#pragma unroll
  for (int i = 0; i < N; ++i) y[i] = to_float(x.x[i]) * factor * weight.x[i];
  return rounded<T>(y);
}

// -- SwiGLU: silu(gate) * up = gate / (1 + e^-gate) * up

__device__ inline float swiglu(float gate, float up) {
  return __fdividef(gate, __expf(-gate) + 1) * up;
}
/// SwiGLU of the sums of a GEMM, which are rounded to T first.
template <class T>
__device__ inline T swiglu_of_sums(float gate, float up) {
  return from_float<T>(swiglu(to_float(from_float<T>(gate)), to_float(from_float<T>(up))));
}
/// SwiGLU of two neighbours in bfloat16 with one reciprocal, 1 / (a b) for a = 1 + e^-g and
/// b = 1 + e^-h of the gates g and h, because the special function unit bounds the kernels that
/// call this. So the last bit of an output may differ from swiglu_of_sums().
__device__ __forceinline__ uint32_t swiglu_pair(const float* gate, const float* up) {
  constexpr float kMaxExponent = 60;  // so that a * b is finite
  const uint32_t g = pack<Bf16>(gate[0], gate[1]), u = pack<Bf16>(up[0], up[1]);
  const auto low = [](uint32_t v) { return __uint_as_float(v << 16); };
  const auto high = [](uint32_t v) { return __uint_as_float(v & 0xffff0000); };
  const float a = exp2_approx(fminf(low(g) * -kLog2e, kMaxExponent)) + 1;
  const float b = exp2_approx(fminf(high(g) * -kLog2e, kMaxExponent)) + 1;
  const float r = __fdividef(1, a * b);
  return pack<Bf16>(low(g) * (b * r) * low(u), high(g) * (a * r) * high(u));
}

// -- one head of q or k: RMSNorm (Qwen3), then the rotary embedding of the pairs (i, i + half)

/// N neighbouring elements of the lower half of a head, and those that rotate with them.
template <class T, int N>
struct HeadPart {
  Vec<T, N> low, high;

  __device__ void load_from(const T* head, int half, int at) {
    low = load<N>(head + at);
    high = load<N>(head + half + at);
  }
  /// The part's share of the head's sum of squares, added pair by pair.
  __device__ float squares() const {
    float sum = 0;
#pragma unroll
    for (int i = 0; i < N; ++i) {
      const float u = to_float(low.x[i]), v = to_float(high.x[i]);
      sum += u * u + v * v;
    }
    return sum;
  }
  /// u' = u cos - v sin, v' = v cos + u sin, where u and v are low and high, times factor * weight
  /// if there is a norm. Rounds once.
  __device__ void norm_and_rotate(bool has_norm, float factor, const Vec<float, N>& weight_low,
                                  const Vec<float, N>& weight_high, const Vec<float, N>& cos,
                                  const Vec<float, N>& sin) {
    float y[2][N];
#pragma unroll
    for (int i = 0; i < N; ++i) {
      float u = to_float(low.x[i]), v = to_float(high.x[i]);
      if (has_norm) {
        u *= factor * weight_low.x[i];
        v *= factor * weight_high.x[i];
      }
      y[0][i] = u * cos.x[i] - v * sin.x[i];
      y[1][i] = v * cos.x[i] + u * sin.x[i];
    }
    low = rounded<T>(y[0]);
    high = rounded<T>(y[1]);
  }
};

}  // namespace nanovllm::cuda
