#pragma once

#include <type_traits>

#include "nanovllm/ops/cuda/device/device.cuh"

namespace nanovllm::cuda {

/// Calls body(T(), head_dim) with the C++ type of a 16-bit dtype and the head_dim of a tiled
/// layout, up to kMaxHeadDim, as an integral_constant.
template <int kMaxHeadDim = 256, class Body>
void with_tiled_type(DType dtype, int head_dim, Body body) {
  const auto with_head_dim = [&](auto type) {
    if (head_dim == 64) return body(type, std::integral_constant<int, 64>());
    if (head_dim == 128) return body(type, std::integral_constant<int, 128>());
    if constexpr (kMaxHeadDim == 256)
      if (head_dim == 256) return body(type, std::integral_constant<int, 256>());
    check_args(false, "attention: a head_dim that the kernel is not compiled for");
  };
  if (dtype == DType::kBF16) return with_head_dim(Bf16());
  check_args(dtype == DType::kF16, "attention: a dtype that the kernel is not compiled for");
  with_head_dim(F16());
}

}  // namespace nanovllm::cuda
