#pragma once

#include <cuda_runtime.h>

#include <array>
#include <vector>

#include "nanovllm/ops/weight_rows.h"

namespace nanovllm::cuda {

/// Brings weights to the device at the speed of the bus: several threads read them into pinned
/// memory, each with two pieces, one of which is on its way.
class WeightUpload {
 public:
  WeightUpload();
  ~WeightUpload();
  WeightUpload(const WeightUpload&) = delete;

  /// All rows of `from` to `to`, dense. Done when it returns.
  void copy(void* to, const WeightRows& from);

 private:
  struct Lane {
    cudaStream_t stream = nullptr;
    std::array<char*, 2> pieces = {};
    std::array<cudaEvent_t, 2> sent = {};
  };
  /// Makes pieces large enough for a row.
  void grow(size_t row_bytes);

  std::vector<Lane> lanes_;
  size_t piece_bytes_ = 0;
  int device_ = 0;
};

}  // namespace nanovllm::cuda
