#pragma once

#include <cstdint>

// Sources compiled for several instruction sets include this: no inline functions here.

namespace nanovllm::cpu {

/// The rotation of a head [head_dim] at one position.
struct Rotation {
  const float* cos = nullptr;  ///< [head_dim / 2]
  const float* sin = nullptr;  ///< [head_dim / 2]
  int64_t head_dim = 0;
  float eps = 0;  ///< the epsilon of the RMSNorm before the rotation
};

/// Kernels of one instruction set for a model of one dtype. Each works on one row of n elements.
struct ElementwiseKernels {
  /// Conversions to the model's dtype from float32, bfloat16 and float16.
  void (*convert[3])(void* to, const void* from, int64_t n);
  void (*add)(void* sum, const void* x, int64_t n);  ///< sum += x
  /// out = x / rms(x) * weight
  void (*rms_norm)(void* out, const void* x, const float* weight, int64_t n, float eps);
  /// The sum of squares of x, each times `counted` where there is such a row [n].
  float (*sum_squares)(const void* x, const float* counted, int64_t n);
  void (*scale)(void* x, float factor, const float* weight, int64_t n);  ///< x *= factor * weight
  /// out = the sum of rows[j] of x [.., stride] times weights[j], j below `count`, in this order
  void (*weighted_sum)(void* out, const void* x, int64_t stride, const int32_t* rows,
                       const float* weights, int64_t count, int64_t n);
  void (*silu_mul)(void* out, const void* gate, const void* up, int64_t n);
  /// out = the rotation of x, or of x / rms(x) * norm [head_dim] where there is a norm. `out` may
  /// be x.
  void (*norm_and_rotate)(void* out, const void* x, const float* norm, const Rotation&);
  /// out = x / scale as e4m3. Returns the scale, with which the largest magnitude becomes 448. The
  /// scale is never zero; if x has a NaN, the scale is NaN.
  float (*quantize)(void* out, const void* x, int64_t n);
};

}  // namespace nanovllm::cpu
