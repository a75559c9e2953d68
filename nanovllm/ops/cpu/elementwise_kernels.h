#pragma once

#include <cstdint>

// Included by files compiled for one instruction set: no inline functions here.

namespace nanovllm::cpu {

/// One token's q, k and v heads. Elements are of the model's dtype but where a comment says
/// float32.
struct RopeToken {
  void* q = nullptr;              ///< [num_heads, head_dim], changed in place
  const void* k = nullptr;        ///< [num_kv_heads, head_dim]
  const void* v = nullptr;        ///< [num_kv_heads, head_dim]
  const float* q_norm = nullptr;  ///< [head_dim] or none
  const float* k_norm = nullptr;
  const float* cos = nullptr;  ///< [head_dim / 2] at the token's position
  const float* sin = nullptr;
  int64_t num_heads = 0, num_kv_heads = 0, head_dim = 0;
  float eps = 0;
  void* k_out = nullptr;  ///< [num_kv_heads, head_dim] of the cache's dtype; none: not stored
  void* v_out = nullptr;
  int64_t out_stride = 0;  ///< elements from one KV head of the cache to the next
};

/// Each works on one row of n elements. Tables are indexed by dtype: float32, bfloat16, float16.
struct ElementwiseKernels {
  void (*convert[3][3])(void* to, const void* from, int64_t n);  ///< [to][from]
  void (*add[3])(void* sum, const void* x, int64_t n);           ///< sum += x
  /// out = x / rms(x) * weight
  void (*rms_norm[3])(void* out, const void* x, const float* weight, int64_t n, float eps);
  void (*silu_mul[3])(void* out, const void* gate, const void* up, int64_t n);
  void (*rope_and_store[3][3])(const RopeToken&);  ///< [of the model][of the cache]
};

namespace plain {
extern const ElementwiseKernels kElementwiseKernels;
}
namespace avx2 {
extern const ElementwiseKernels kElementwiseKernels;
}
namespace avx512 {
extern const ElementwiseKernels kElementwiseKernels;
}

}  // namespace nanovllm::cpu
