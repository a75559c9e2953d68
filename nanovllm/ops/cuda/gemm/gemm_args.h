#pragma once

#include <cstdint>

#include "nanovllm/base/dtype.h"
#include "nanovllm/ops/cuda/device/few_tokens.h"
#include "nanovllm/ops/cuda/device/runtime.h"

namespace nanovllm::cuda {

struct QuantizedWeight;
struct QuantizedActivations;
struct RopeParams;
struct Peers;

/// The operation of a GEMM on its sums before it writes them.
enum class Epilogue {
  kStore,   ///< out [T, n] = x w^T + bias
  kAdd,     ///< out [T, n] += x w^T
  kSwiglu,  ///< out [T, n] = silu(x g^T) * x u^T, where w is g [n, k], then u [n, k]
};

/// A GEMM with the row operations before and after it. Each kernel says which of them it fuses.
struct GemmArgs {
  void* out = nullptr;          // [T, n]
  const void* x = nullptr;      // [T, k]
  const void* w = nullptr;      // [n or 2 n, k]
  const float* norm = nullptr;  // [k] the weight of an RMSNorm of x; or null
  const float* bias = nullptr;  // [n] or null
  float eps = 0;                // the norm's epsilon
  int num_tokens = 0, n = 0, k = 0;
  Epilogue epilogue = Epilogue::kStore;
  bool float_out = false;  // out is float32; only tile_gemm() with kStore
  // The following fields are for the host; kernels do not read them.
  const QuantizedWeight* quantized = nullptr;         // instead of w
  bool has_e4m3_x = false;                            // x is quantized too, normed already
  const QuantizedActivations* quantized_x = nullptr;  // then, unless only a choice is made: x
  // If out is its qkv: rope_and_store() follows, and k and v are not written to out. Only
  // swap_ab_gemm().
  const RopeParams* rope = nullptr;
  // If not null, out is this rank's addend of an all-reduce, which is sent to these ranks instead
  // of being written (collectives/pairs.cuh). Only small_gemm() and quantized_small_gemm().
  const Peers* peers = nullptr;
};

/// A norm between two GEMMs whose division is deferred to the epilogue of the second:
///   rms_norm(residual) w^T = ((residual * weight) w^T) / rms(residual)
/// The GEMM that adds to the residual [T, n] also writes residual * weight, and the sums of the
/// residual's squares. The next GEMM multiplies residual * weight by w and divides in its epilogue.
struct DeferredNorm {
  const float* weight = nullptr;  ///< [n]
  void* x = nullptr;              ///< [T, n]: residual * weight
  float* squares = nullptr;       ///< [num_parts, kNormTokens]: sums of the residual's squares
  int num_parts = 0;              ///< parts of n, each with its own sums; at most kMaxNormParts
};
/// The most tokens of a DeferredNorm.
inline constexpr int kNormTokens = 64;
inline constexpr int kMaxNormParts = 1024;

/// Whether small_gemm() computes this GEMM, and faster than cuBLASLt with separate row operations:
/// up to kFewTokens tokens and a 16-bit dtype. It computes SwiGLU only together with a norm.
bool prefers_small_gemm(const GemmArgs& args, DType dtype);
/// A GEMM of few tokens with the norm, the bias, the addition or SwiGLU in the same kernel.
void small_gemm(Launch where, const GemmArgs& args, DType dtype);

}  // namespace nanovllm::cuda
