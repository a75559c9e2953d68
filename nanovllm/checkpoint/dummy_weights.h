#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "nanovllm/base/dtype.h"
#include "nanovllm/ops/weight_rows.h"

namespace nanovllm {

/// Where tensors come from: takes a name and a shape of one or two dimensions, returns the tensor.
/// A vector has one column.
using WeightSource = std::function<WeightRows(const std::string&, const std::vector<int64_t>&)>;

/// Random weights of `dtype` in place of a checkpoint, the same in every run. They are made about
/// as fast as memory is copied: there is one table of values that are nearly normally distributed
/// with the standard deviation `initializer_range`, and each tensor repeats it from a different
/// start. The weights of norms are 1.
WeightSource dummy_weights(DType dtype, float initializer_range);

}  // namespace nanovllm
