#pragma once

#include "nanovllm/ops/cuda/small_matmul.h"

namespace nanovllm::cuda {

/// A product of 17 to 64 tokens with the row operations around it in one kernel, on Hopper. False,
/// and nothing is done, for shapes where cuBLASLt and separate row operations are not known to be
/// slower.
bool mid_matmul(Launch where, const SmallMatmul& args, DType dtype);

}  // namespace nanovllm::cuda
