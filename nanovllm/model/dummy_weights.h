#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "nanovllm/base/dtype.h"
#include "nanovllm/model/checkpoint.h"

namespace nanovllm {

/// Random weights in place of a checkpoint, the same each time, about as fast as memory is written:
/// one table of near-normal values, which each tensor repeats from a place of its own. Norms are
/// ones.
class DummyWeights {
 public:
  /// Values of `dtype` with the standard deviation `initializer_range`.
  DummyWeights(DType dtype, float initializer_range);

  /// A tensor in memory of its own. Throws UserError where there is not enough.
  HostTensor operator()(const std::string& name, const std::vector<int64_t>& shape) const;

 private:
  DType dtype_;
  std::vector<char> table_;
};

}  // namespace nanovllm
