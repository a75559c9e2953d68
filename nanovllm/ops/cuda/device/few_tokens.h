#pragma once

#include <cstdint>

namespace nanovllm::cuda {

/// The most tokens of small_gemm(). Other code also chooses kernels by it, because small_gemm()
/// includes the norm before a GEMM and the SwiGLU, bias or residual after it.
inline constexpr int64_t kFewTokens = 16;

}  // namespace nanovllm::cuda
