#pragma once

#include "nanovllm/ops/cuda/rope.h"
#include "nanovllm/ops/cuda/small_matmul.h"

namespace nanovllm::cuda {

/// Whether mid_matmul() has a kernel for a product of 17 to 64 tokens that wins against cuBLASLt
/// and separate row operations. Hopper only.
bool is_mid_matmul(const SmallMatmul& args, DType dtype);
void mid_matmul(Launch where, const SmallMatmul& args);
/// The same of a product whose out is rope.qkv, with rope_and_store behind it in the same kernel.
bool is_roped_matmul(const SmallMatmul& args, DType dtype, const RopeParams& rope);
void roped_matmul(Launch where, const SmallMatmul& args, const RopeParams& rope);

}  // namespace nanovllm::cuda
