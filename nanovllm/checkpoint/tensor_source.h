#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <vector>

#include "nanovllm/base/dtype.h"
#include "nanovllm/ops/weight_rows.h"

namespace nanovllm {

/// Where tensors come from: a checkpoint, or random numbers in its place.
class TensorSource {
 public:
  virtual ~TensorSource() = default;

  virtual bool has(const std::string& name) const = 0;
  /// The tensor `name`, of one or two dimensions; a vector has one column. Throws UserError if it
  /// is missing, if its shape is not `shape`, or if its dtype is none of `dtypes`.
  virtual WeightRows take(const std::string& name, const std::vector<int64_t>& shape,
                          std::initializer_list<DType> dtypes = {DType::kBF16, DType::kF16,
                                                                 DType::kF32}) = 0;
};

}  // namespace nanovllm
