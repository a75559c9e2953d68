// Operations on single rows for one instruction set: conversion, additions, RMSNorm, SwiGLU and the
// rotary embedding. All of them compute in float32 and round once, when they store.
#include "nanovllm/ops/cpu/kernels/elementwise.h"
#include "nanovllm/ops/cpu/kernels/simd.h"

namespace nanovllm::cpu::NANOVLLM_ISA {
namespace {

template <class To, class From>
void convert(void* to, const void* from, int64_t n) {
  convert(static_cast<To*>(to), static_cast<const From*>(from), n);
}

/// 1 / sqrt(mean of squares of x [n] + eps)
template <class T>
inline F32 inverse_rms(const T* x, int64_t n, float eps) {
  F32 squares{};
  for_each_vector(n, [&](int64_t i, auto ld, auto) {
    const F32 v = ld(x + i);
    squares = fma(v, v, squares);
  });
  return broadcast(1.0f / __builtin_sqrtf(sum(squares) / static_cast<float>(n) + eps));
}

template <class T>
void add(void* sum_row, const void* x_row, int64_t n) {
  T* sum = static_cast<T*>(sum_row);
  const T* x = static_cast<const T*>(x_row);
  for_each_vector(n, [=](int64_t i, auto ld, auto st) { st(sum + i, ld(sum + i) + ld(x + i)); });
}

template <class T>
void rms_norm(void* out_row, const void* x_row, const float* weight, int64_t n, float eps) {
  T* out = static_cast<T*>(out_row);
  const T* x = static_cast<const T*>(x_row);
  const F32 scale = inverse_rms(x, n, eps);
  for_each_vector(
      n, [&](int64_t i, auto ld, auto st) { st(out + i, ld(x + i) * scale * ld(weight + i)); });
}

template <class T>
float sum_squares(const void* x_row, const float* counted, int64_t n) {
  const T* x = static_cast<const T*>(x_row);
  F32 squares{};
  for_each_vector(n, [&](int64_t i, auto ld, auto) {
    const F32 v = ld(x + i);
    squares = fma(v, counted != nullptr ? v * ld(counted + i) : v, squares);
  });
  return sum(squares);
}

template <class T>
void scale(void* x_row, float factor, const float* weight, int64_t n) {
  T* x = static_cast<T*>(x_row);
  for_each_vector(n, [=](int64_t i, auto ld, auto st) {
    st(x + i, ld(x + i) * broadcast(factor) * ld(weight + i));
  });
}

template <class T>
void silu_mul(void* out, const void* gate, const void* up, int64_t n) {
  for_each_vector(n, [=](int64_t i, auto ld, auto st) {
    const F32 g = ld(static_cast<const T*>(gate) + i);
    const F32 u = ld(static_cast<const T*>(up) + i);
    st(static_cast<T*>(out) + i, g / (exp(-g) + 1.0f) * u);
  });
}

template <class T>
void weighted_sum(void* out, const void* x_rows, int64_t stride, const int32_t* rows,
                  const float* weights, int64_t count, int64_t n) {
  const T* x = static_cast<const T*>(x_rows);
  for_each_vector(n, [=](int64_t i, auto ld, auto st) {
    F32 sum{};
    for (int64_t j = 0; j < count; ++j)
      sum = fma(broadcast(weights[j]), ld(x + rows[j] * stride + i), sum);
    st(static_cast<T*>(out) + i, sum);
  });
}

/// Rotates the pairs (i, i + head_dim / 2). Source: Su et al., "RoFormer", 2021, with the halves'
/// order of GPT-NeoX.
template <class T>
void norm_and_rotate(void* to, const void* from, const float* norm, const Rotation& t) {
  T* out = static_cast<T*>(to);
  const T* x = static_cast<const T*>(from);
  const int64_t half = t.head_dim / 2;
  const F32 scale = norm ? inverse_rms(x, t.head_dim, t.eps) : broadcast(1);
  for_each_vector(half, [&](int64_t i, auto ld, auto st) {
    F32 a = ld(x + i), b = ld(x + half + i);
    if (norm) {
      a = a * scale * ld(norm + i);
      b = b * scale * ld(norm + half + i);
    }
    const F32 cos = ld(t.cos + i), sin = ld(t.sin + i);
    st(out + i, fma(a, cos, -(b * sin)));
    st(out + half + i, fma(b, cos, a * sin));
  });
}

template <class T>
float quantize(void* to, const void* from, int64_t n) {
  const T* x = static_cast<const T*>(from);
  // The bits of magnitudes, compared as integers, have the order of the floats, and NaN is larger
  // than all numbers.
  U32 top{};
  for_each_vector(n, [&](int64_t i, auto ld, auto) {
    const U32 magnitude = reinterpret_cast<U32>(ld(x + i)) & 0x7fffffff;
    top = magnitude > top ? magnitude : top;
  });
  uint32_t bits = 0x21800000;  // 2^-60
  for (int i = 0; i < kLanes; ++i) bits = bits > top[i] ? bits : top[i];
  float largest;
  __builtin_memcpy(&largest, &bits, sizeof largest);
  constexpr float kMost = 448;
  const F32 inverse = broadcast(kMost / largest);
  for_each_vector(
      n, [=](int64_t i, auto ld, auto st) { st(static_cast<E4m3*>(to) + i, ld(x + i) * inverse); });
  return largest / kMost;
}

template <class T>
constexpr ElementwiseKernels kKernels = {
    .convert = {convert<T, float>, convert<T, Bf16>, convert<T, F16>},
    .add = add<T>,
    .rms_norm = rms_norm<T>,
    .sum_squares = sum_squares<T>,
    .scale = scale<T>,
    .weighted_sum = weighted_sum<T>,
    .silu_mul = silu_mul<T>,
    .norm_and_rotate = norm_and_rotate<T>,
    .quantize = quantize<T>,
};

}  // namespace

extern const ElementwiseKernels kElementwise[3] = {kKernels<float>, kKernels<Bf16>, kKernels<F16>};

}  // namespace nanovllm::cpu::NANOVLLM_ISA
