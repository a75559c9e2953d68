#pragma once

#include "nanovllm/ops/cuda/device/device.cuh"

// 8-bit floats (nanovllm/base/dtype.h). GPUs from compute capability 8.9 on convert two of them
// with one instruction; others use integer instructions.
namespace nanovllm::cuda {

struct E4m3 {
  uint8_t bits;
};

/// Four numbers as two pairs of halfs. Every e4m3 number is also a half.
__device__ __forceinline__ void e4m3_to_halfs(uint32_t four, uint32_t& low, uint32_t& high) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
  asm("{\n.reg .b16 l, h;\nmov.b32 {l, h}, %2;\ncvt.rn.f16x2.e4m3x2 %0, l;\n"
      "cvt.rn.f16x2.e4m3x2 %1, h;\n}"
      : "=r"(low), "=r"(high)
      : "r"(four));
#else
  // A byte becomes the high byte of a half whose exponent is one bit wider; multiplying by 2^8
  // corrects the exponent's bias, also for subnormals.
  const auto convert = [](uint32_t wide) {
    const uint32_t bits = (wide & 0x80008000) | (wide & 0x7f007f00) >> 1, factor = 0x5c005c00;
    return bits_as<uint32_t>(__hmul2(bits_as<__half2>(bits), bits_as<__half2>(factor)));
  };
  low = convert(__byte_perm(four, 0, 0x1404));
  high = convert(__byte_perm(four, 0, 0x3424));
#endif
}
__device__ inline float to_float(E4m3 x) {
  uint32_t low, high;
  e4m3_to_halfs(x.bits, low, high);
  return __low2float(bits_as<__half2>(low));
}

/// Two floats of at most 448 rounded to e4m3, `low` in the low byte.
__device__ __forceinline__ uint32_t floats_to_e4m3(float low, float high) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
  uint16_t pair;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(high), "f"(low));
  return pair;
#else
  const auto convert = [](float x) {
    const uint32_t bits = __float_as_uint(x), magnitude = bits & 0x7fffffff;
    // Adding 2^14 leaves a subnormal's bits, rounded, in the low end.
    const uint32_t rounded =
        magnitude < 0x3c800000 ? __float_as_uint(__uint_as_float(magnitude) + 0x1p14f) - 0x46800000
                               : (magnitude + 0x7ffff + (magnitude >> 20 & 1) - (120u << 23)) >> 20;
    return rounded | (bits >> 24 & 0x80);
  };
  return convert(low) | convert(high) << 8;
#endif
}

/// The scale that makes the largest of some numbers 448, the largest number of e4m3. `largest` has
/// the bits of the largest magnitude as a float. The scale is never zero; that of NaN is NaN.
__device__ inline float e4m3_scale(uint32_t largest) {
  return __uint_as_float(max(largest, 0x21800000u)) * (1.0f / 448);  // at least 2^-60
}
/// The bits of the largest magnitude of x and `most`. The bits of magnitudes, compared as integers,
/// have the order of the floats, and NaN is larger than all numbers.
template <class T, int N>
__device__ inline uint32_t largest_magnitude(const Vec<T, N>& x, uint32_t most) {
#pragma unroll
  for (int i = 0; i < N; ++i) most = max(most, __float_as_uint(to_float(x.x[i])) & 0x7fffffff);
  return most;
}

/// x * inverse as e4m3.
template <class T, int N>
__device__ inline Vec<E4m3, N> quantized(const Vec<T, N>& x, float inverse) {
  Vec<E4m3, N> y;
#pragma unroll
  for (int i = 0; i < N; i += 2) {
    const float high = i + 1 < N ? to_float(x.x[(i + 1) % N]) : 0;
    const uint32_t pair = floats_to_e4m3(to_float(x.x[i]) * inverse, high * inverse);
    y.x[i].bits = static_cast<uint8_t>(pair);
    if (i + 1 < N) y.x[(i + 1) % N].bits = static_cast<uint8_t>(pair >> 8);
  }
  return y;
}

}  // namespace nanovllm::cuda
