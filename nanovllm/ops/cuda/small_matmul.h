#pragma once

#include <cstdint>

#include "nanovllm/base/dtype.h"
#include "nanovllm/ops/cuda/runtime.h"

namespace nanovllm::cuda {

inline constexpr int64_t kFewTokens = 16;

/// A product of up to kFewTokens, with the row operations around it in the same kernel.
struct SmallMatmul {
  enum class End {
    kStore,   ///< out [T, n] = x w^T + bias
    kAdd,     ///< out [T, n] += x w^T
    kSwiglu,  ///< out [T, n] = silu(x g^T) * x u^T, w holding g [n, k], then u [n, k]
  };
  void* out;          // [T, n]
  const void* x;      // [T, k]
  const void* w;      // [n or 2 n, k]
  const float* norm;  // [k]: x is RMS-normed first; or null
  const float* bias;  // [n] or null
  float eps;
  int num_tokens, n, k;
  End end;
  bool float_out = false;  // out is float32: tile_matmul() alone, with kStore
};

/// Whether small_matmul() has a kernel that wins against cuBLASLt and separate row operations.
bool is_small_matmul(int64_t num_tokens, int64_t n, int64_t k, SmallMatmul::End end, DType dtype);
void small_matmul(Launch where, const SmallMatmul& args, DType dtype);

}  // namespace nanovllm::cuda
