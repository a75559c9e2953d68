#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "nanovllm/ops/backend.h"

namespace nanovllm {

/// Whether this machine has NVIDIA's driver.
bool has_cuda_driver();

/// Which of the kernels that serve a shape are taken; all but the fastest are for tests.
struct CudaKernels {
  bool portable = false;  ///< those that every GPU from compute capability 8.0 on runs
  /// Which kernel computes a GEMM of more than a few tokens: a tile configuration by its index
  /// (cuda/gemm/tile_gemm.h), which throws where it does not serve; kSwapAb, and cuBLASLt where
  /// that does not serve; -1: kSwapAb by its rule, else what measures fastest.
  int gemm = -1;
  static constexpr int kSwapAb = 1000;  ///< cuda/gemm/swap_ab_gemm.h
  /// A sum of up to 4 MiB over ranks and its norm: two kernels or, wherever it serves, a one-shot
  /// or two-shot kernel for both.
  enum class SumNorm : uint8_t { kSeparate, kOneShot, kTwoShot };
  std::optional<SumNorm> sum_norm = {};  ///< none: what measures fastest
};

/// The backend on visible GPU rank.index, from libnanovllm_cuda.so: beside this program or library,
/// above it, in ../lib, or by the loader's path. Throws UserError that names what is missing; fewer
/// visible GPUs than ranks are.
std::unique_ptr<Backend> make_cuda_backend(CudaKernels kernels = {}, Rank rank = {});

}  // namespace nanovllm
