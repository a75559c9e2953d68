#pragma once

#include <cstdint>

namespace nanovllm::cuda {

/// The most tokens of small_gemm(). Other kernels choose by it too, because small_gemm() includes
/// what comes before and after a GEMM.
inline constexpr int64_t kFewTokens = 16;

}  // namespace nanovllm::cuda
