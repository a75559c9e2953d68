#pragma once

#include <type_traits>

#include "nanovllm/ops/cuda/attention/kv_layout.cuh"
#include "nanovllm/ops/cuda/device/e4m3.cuh"

namespace nanovllm::cuda {

/// Calls body(T(), head_dim) with the C++ type of a 16-bit dtype, and with the head_dim of a tiled
/// layout (kv_layout.cuh), up to kMaxHeadDim, as an integral_constant.
template <int kMaxHeadDim = 256, class Body>
void with_tiled_type(DType dtype, int head_dim, Body body) {
  const auto with_head_dim = [&](auto type) {
    if (head_dim == 64) return body(type, std::integral_constant<int, 64>());
    if (head_dim == 128) return body(type, std::integral_constant<int, 128>());
    if constexpr (kMaxHeadDim == 256)
      if (head_dim == 256) return body(type, std::integral_constant<int, 256>());
    check_args(false, "attention: a head_dim that the kernel is not compiled for");
  };
  with_16bit_type(dtype, with_head_dim);
}

/// Calls body(C()) with the C++ type of the cache's elements, in a model of type T.
template <class T, class Body>
void with_cache_type(const KvLayout& layout, Body body) {
  if (layout.is_e4m3()) body(E4m3());
  else body(T());
}

}  // namespace nanovllm::cuda
