#pragma once

#include "nanovllm/ops/cuda/small_matmul.h"

namespace nanovllm::cuda {

/// Whether mid_matmul() has a kernel for a product of 17 to 64 tokens that wins against cuBLASLt
/// and separate row operations. Hopper only.
bool is_mid_matmul(const SmallMatmul& args, DType dtype);
void mid_matmul(Launch where, const SmallMatmul& args);

}  // namespace nanovllm::cuda
