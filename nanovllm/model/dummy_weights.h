#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "nanovllm/base/dtype.h"
#include "nanovllm/ops/weight_rows.h"

namespace nanovllm {

/// Random weights in place of a checkpoint, the same each time, about as fast as memory is copied:
/// one table of near-normal values, which each tensor repeats from a place of its own. Norms are
/// ones.
class DummyWeights {
 public:
  /// Values of `dtype` with the standard deviation `initializer_range`.
  DummyWeights(DType dtype, float initializer_range);

  /// A tensor of one or two dimensions; a vector has one column.
  WeightRows operator()(const std::string& name, const std::vector<int64_t>& shape) const;

 private:
  DType dtype_;
  std::shared_ptr<const std::vector<char>> normal_, ones_;
};

}  // namespace nanovllm
