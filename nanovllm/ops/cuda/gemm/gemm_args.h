#pragma once

#include <cstdint>

#include "nanovllm/base/dtype.h"
#include "nanovllm/ops/cuda/device/runtime.h"

namespace nanovllm::cuda {

inline constexpr int64_t kFewTokens = 16;

/// What a GEMM does with its sums before it writes them.
enum class Epilogue {
  kStore,   ///< out [T, n] = x w^T + bias
  kAdd,     ///< out [T, n] += x w^T
  kSwiglu,  ///< out [T, n] = silu(x g^T) * x u^T, w holding g [n, k], then u [n, k]
};

/// A GEMM with the row operations around it; which of them a kernel fuses is its own matter.
struct GemmArgs {
  void* out = nullptr;          // [T, n]
  const void* x = nullptr;      // [T, k]
  const void* w = nullptr;      // [n or 2 n, k]
  const float* norm = nullptr;  // [k]: x is RMS-normed first; or null
  const float* bias = nullptr;  // [n] or null
  float eps = 0;                // of the norm
  int num_tokens = 0, n = 0, k = 0;
  Epilogue epilogue = Epilogue::kStore;
  bool float_out = false;  // out is float32: tile_gemm() alone, with kStore
};

/// Whether small_gemm() serves this GEMM and wins against cuBLASLt and separate row operations: few
/// tokens, 16 bits; with SwiGLU only after a norm.
bool is_small_gemm(const GemmArgs& args, DType dtype);
void small_gemm(Launch where, const GemmArgs& args, DType dtype);

}  // namespace nanovllm::cuda
