#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "nanovllm/ops/backend.h"

namespace nanovllm {

/// Whether NVIDIA's driver is installed (libcuda.so.1 can be loaded).
bool has_cuda_driver();

/// Which kernel is used if several support a shape. Values other than the defaults are for tests.
struct CudaKernels {
  bool portable = false;  ///< only kernels that run on every GPU of compute capability 8.0 or later
  /// Which kernel computes a GEMM of more than a few tokens: the index of a tile configuration
  /// (cuda/gemm/hopper/tile_gemm.h), which throws for shapes that it does not support; or -1:
  /// swap-AB according to its rule, else the choice of the autotuner.
  int gemm = -1;
  /// How an all-reduce of up to 4 MiB and the norm after it are computed: by two kernels, or by one
  /// kernel with a one-shot or two-shot all-reduce wherever that supports the shape.
  enum class SumNorm : uint8_t { kSeparate, kOneShot, kTwoShot };
  std::optional<SumNorm> sum_norm = {};  ///< none: the fastest in measurements
};

/// The backend on the visible GPU number rank.index. It is in libnanovllm_cuda.so, which is
/// searched for in the folder of this program or library, in the folder above it, in ../lib, and in
/// the loader's path. Throws UserError that says what is missing, also if there are fewer visible
/// GPUs than ranks.
std::unique_ptr<Backend> make_cuda_backend(CudaKernels kernels = {}, Rank rank = {});

}  // namespace nanovllm
