#pragma once

#include "nanovllm/base/tensor.h"
#include "nanovllm/ops/cuda/runtime.h"

namespace nanovllm::cuda {

/// Sizes of tile that swiglu_sm90() can be had with: from 64 tokens by 48 features to 256 by 96.
constexpr int kNumSwigluTiles = 5;

/// Whether swiglu_sm90() serves these: bfloat16, n and k multiples of 8.
inline bool has_swiglu_sm90(const Tensor& out, const Tensor& x) {
  return x.dtype == DType::kBF16 && out.shape[1] % 8 == 0 && x.shape[1] % 8 == 0;
}
/// out [T, n] = silu(x g^T) * x u^T on Hopper; w [2 n, k] holds g, then u.
void swiglu_sm90(Launch where, Tensor out, Tensor x, Tensor w, int tile);

}  // namespace nanovllm::cuda
