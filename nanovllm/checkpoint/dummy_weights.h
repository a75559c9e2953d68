#pragma once

#include <functional>
#include <memory>
#include <string>

#include "nanovllm/base/dtype.h"
#include "nanovllm/checkpoint/tensor_source.h"

namespace nanovllm {

/// Random weights of `dtype` in place of a checkpoint, the same in every run. They are made about
/// as fast as memory is copied: there is one table of values that are nearly normally distributed
/// with the standard deviation `initializer_range`, and each tensor repeats it from a different
/// start. The weights of norms are 1. Each module (a weight's name without ".weight") for which
/// `is_quantized` returns true has quantized tensors: random values of their format, with scales
/// that give the weights about this deviation too.
std::unique_ptr<TensorSource> dummy_weights(
    DType dtype, float initializer_range,
    std::function<bool(const std::string& module)> is_quantized = {});

}  // namespace nanovllm
