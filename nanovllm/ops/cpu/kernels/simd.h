// Vectors of the instruction set that the source is compiled for: kLanes floats, and loads and
// stores of float32, bfloat16 and float16 elements as such. Only sources in kernels/ include this,
// and everything here is local to them (CMakeLists.txt says why).
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

namespace nanovllm::cpu::NANOVLLM_ISA {
namespace {

#if defined(__AVX512F__)
constexpr int kLanes = 16;
#elif defined(__AVX2__)
constexpr int kLanes = 8;
#else
constexpr int kLanes = 4;
#endif

using F32 = float __attribute__((vector_size(4 * kLanes)));
using U32 = uint32_t __attribute__((vector_size(4 * kLanes)));
using U16 = uint16_t __attribute__((vector_size(2 * kLanes)));
using U8 = uint8_t __attribute__((vector_size(kLanes)));

struct Bf16 {
  uint16_t bits;
};
struct F16 {
  uint16_t bits;
};
/// An 8-bit float: nanovllm/base/dtype.h.
struct E4m3 {
  uint8_t bits;
};

/// Subtracting zero changes no value, so the compiler leaves only the broadcast.
inline F32 broadcast(float x) { return x - F32{}; }

/// a * b + c, rounded once where the instruction set can.
inline F32 fma(F32 a, F32 b, F32 c) {
#if defined(__AVX512F__)
  return _mm512_fmadd_ps(a, b, c);
#elif defined(__AVX2__)
  return _mm256_fmadd_ps(a, b, c);
#else
  return a * b + c;
#endif
}

inline F32 load(const float* p) {
  F32 v;
  __builtin_memcpy(&v, p, sizeof v);
  return v;
}

inline F32 load(const Bf16* p) {
#if defined(__AVX512F__)
  const __m256i x = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  return reinterpret_cast<F32>(_mm512_slli_epi32(_mm512_cvtepu16_epi32(x), 16));
#elif defined(__AVX2__)
  const __m128i x = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return reinterpret_cast<F32>(_mm256_slli_epi32(_mm256_cvtepu16_epi32(x), 16));
#else
  const __m128i x = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p));
  return reinterpret_cast<F32>(_mm_unpacklo_epi16(_mm_setzero_si128(), x));
#endif
}

/// Converts the bits of float16.
inline F32 from_half(U16 bits) {
#if defined(__AVX512F__)
  return _mm512_maskz_cvtph_ps(0xffff, reinterpret_cast<__m256i>(bits));
#elif defined(__AVX2__)
  return _mm256_cvtph_ps(reinterpret_cast<__m128i>(bits));
#else
  // The multiplication corrects the exponent's bias, also for subnormals.
  const U32 half = __builtin_convertvector(bits, U32);
  const U32 magnitude = half & 0x7fff;
  const F32 finite = reinterpret_cast<F32>(magnitude << 13) * 0x1p112f;
  const U32 special = (magnitude << 13) | 0x7f800000;
  const U32 float_bits = magnitude >= 0x7c00 ? special : reinterpret_cast<U32>(finite);
  return reinterpret_cast<F32>(float_bits | (half & 0x8000) << 16);
#endif
}

inline F32 load(const F16* p) {
  U16 bits;
  __builtin_memcpy(&bits, p, sizeof bits);
  return from_half(bits);
}

/// Loads E4M3. The multiplication corrects the exponent's bias, also for subnormals. NaN becomes
/// 480.
inline F32 load(const E4m3* p) {
  U8 v;
  __builtin_memcpy(&v, p, sizeof v);
  const U32 x = __builtin_convertvector(v, U32);
  return reinterpret_cast<F32>((x & 0x7f) << 20 | (x & 0x80) << 24) * 0x1p120f;
}

inline void store(float* p, F32 v) { __builtin_memcpy(p, &v, sizeof v); }

/// Rounds to nearest, ties to even; NaN stays NaN.
inline void store(Bf16* p, F32 v) {
  const U32 bits = reinterpret_cast<U32>(v);
  const U32 rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
  const U32 nan = bits >> 16 | 0x40;
  const U16 half = __builtin_convertvector(v == v ? rounded : nan, U16);
  __builtin_memcpy(p, &half, sizeof half);
}

/// Rounds to nearest, ties to even; too large numbers become infinity, NaN stays NaN.
inline void store(F16* p, F32 v) {
#if defined(__AVX512F__)
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p),
                      _mm512_maskz_cvtps_ph(0xffff, v, _MM_FROUND_TO_NEAREST_INT));
#elif defined(__AVX2__)
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT));
#else
  const U32 bits = reinterpret_cast<U32>(v);
  const U32 magnitude = bits & 0x7fffffff;
  const U32 normal = (magnitude + 0xfff + (magnitude >> 13 & 1) - (112u << 23)) >> 13;
  // Adding 0.5 leaves a subnormal half's bits, rounded, in the low end.
  const U32 subnormal = reinterpret_cast<U32>(reinterpret_cast<F32>(magnitude) + 0.5f) - 0x3f000000;
  U32 half = magnitude < 0x38800000 ? subnormal : normal;
  half = magnitude >= 0x477ff000 ? U32{} + 0x7c00 : half;
  half = magnitude > 0x7f800000 ? U32{} + 0x7e00 : half;
  const U16 packed = __builtin_convertvector(half | (bits >> 16 & 0x8000), U16);
  __builtin_memcpy(p, &packed, sizeof packed);
#endif
}

/// Rounds to nearest, ties to even; for numbers up to 448.
inline void store(E4m3* p, F32 v) {
  const U32 bits = reinterpret_cast<U32>(v);
  const U32 magnitude = bits & 0x7fffffff;
  const U32 normal = (magnitude + 0x7ffff + (magnitude >> 20 & 1) - (120u << 23)) >> 20;
  // Adding 2^14 leaves a subnormal's bits, rounded, in the low end.
  const U32 subnormal =
      reinterpret_cast<U32>(reinterpret_cast<F32>(magnitude) + 0x1p14f) - 0x46800000;
  const U32 rounded = magnitude < 0x3c800000 ? subnormal : normal;
  const U8 packed = __builtin_convertvector(rounded | (bits >> 24 & 0x80), U8);
  __builtin_memcpy(p, &packed, sizeof packed);
}

/// Loads the first `count` lanes; the others are zero.
template <class T>
inline F32 load_first(const T* p, int64_t count) {
  T lanes[kLanes] = {};
  __builtin_memcpy(lanes, p, static_cast<size_t>(count) * sizeof(T));
  return load(lanes);
}

template <class T>
inline void store_first(T* p, F32 v, int64_t count) {
  T lanes[kLanes];
  store(lanes, v);
  __builtin_memcpy(p, lanes, static_cast<size_t>(count) * sizeof(T));
}

/// Calls body(i, load, store) for each vector of [0, n); the last may be a part of one.
template <class Body>
inline void for_each_vector(int64_t n, Body body) {
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes)
    body(
        i, [](auto* p) { return load(p); }, [](auto* p, F32 v) { store(p, v); });
  if (const int64_t rest = n - i)
    body(
        i, [rest](auto* p) { return load_first(p, rest); },
        [rest](auto* p, F32 v) { store_first(p, v, rest); });
}

template <class To, class From>
inline void convert(To* to, const From* from, int64_t n) {
  for_each_vector(n, [=](int64_t i, auto ld, auto st) { st(to + i, ld(from + i)); });
}

/// The sum of all lanes. Lanes i and i + kLanes / 2 are added first, and so on.
inline float sum(F32 v) {
  float lanes[kLanes];
  store(lanes, v);
  for (int half = kLanes / 2; half > 0; half /= 2)
    for (int i = 0; i < half; ++i) lanes[i] += lanes[i + half];
  return lanes[0];
}

/// e^x within about 1 ulp; x below -87.3 counts as -87.3, x above 88.3 as 88.3. Source: Cody and
/// Waite's reduction to |r| <= ln(2)/2, then the Taylor series, whose next term is below 2^-27.
inline F32 exp(F32 x) {
  x = x > 88.3f ? broadcast(88.3f) : x;
  x = x < -87.3f ? broadcast(-87.3f) : x;
  const F32 shifted =
      x * 1.44269504f + 12582912.0f;  // 1.5 * 2^23: the integer part in the low bits
  const F32 n = shifted - 12582912.0f;
  const F32 r = fma(n, broadcast(2.12194440e-4f), fma(n, broadcast(-0.693359375f), x));
  F32 p = broadcast(1.0f / 5040);
  p = fma(p, r, broadcast(1.0f / 720));
  p = fma(p, r, broadcast(1.0f / 120));
  p = fma(p, r, broadcast(1.0f / 24));
  p = fma(p, r, broadcast(1.0f / 6));
  p = fma(p, r, broadcast(0.5f));
  p = fma(p * r, r, r) + 1.0f;
  return reinterpret_cast<F32>(reinterpret_cast<U32>(p) + (reinterpret_cast<U32>(shifted) << 23));
}

/// The kLanes x kLanes matrix whose rows are x[0], x[1], ... becomes its transpose: each round
/// interleaves rows of the first half with rows of the second.
inline void transpose(F32* x) {
  U32 low, high;
  for (uint32_t i = 0; i < kLanes; ++i) {
    low[i] = i / 2 + i % 2 * kLanes;
    high[i] = low[i] + kLanes / 2;
  }
  for (int round = 1; round < kLanes; round *= 2) {
    F32 t[kLanes];
    for (int i = 0; i < kLanes / 2; ++i) {
      t[2 * i] = __builtin_shuffle(x[i], x[i + kLanes / 2], low);
      t[2 * i + 1] = __builtin_shuffle(x[i], x[i + kLanes / 2], high);
    }
    for (int i = 0; i < kLanes; ++i) x[i] = t[i];
  }
}

/// 2^x for x <= 0, zero below 2^-125, within two units in the last place: the integer part goes
/// into the exponent; the Taylor series of the rest, which is within 1/2, ends after the seventh
/// power (5e-9).
inline F32 exp2_nonpositive(F32 x) {
  const F32 shifted = x + 12582912.0f;  // 1.5 * 2^23: the integer part in the low bits
  const F32 r = x - (shifted - 12582912.0f);
  F32 y = broadcast(1.52527338e-5f);
  y = fma(y, r, broadcast(1.54035304e-4f));
  y = fma(y, r, broadcast(1.33335581e-3f));
  y = fma(y, r, broadcast(9.61812911e-3f));
  y = fma(y, r, broadcast(5.55041087e-2f));
  y = fma(y, r, broadcast(2.40226507e-1f));
  y = fma(y, r, broadcast(6.93147181e-1f));
  y = fma(y, r, broadcast(1.0f));
  const U32 scaled = reinterpret_cast<U32>(y) + (reinterpret_cast<U32>(shifted) << 23);
  return x <= -125.0f ? F32{} : reinterpret_cast<F32>(scaled);
}

}  // namespace
}  // namespace nanovllm::cpu::NANOVLLM_ISA
