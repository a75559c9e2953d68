#pragma once

#include <cuda_runtime.h>

#include <array>
#include <vector>

#include "nanovllm/base/tensor.h"

namespace nanovllm::cuda {

/// Brings weights from the mapped file to the device at the speed of the bus: several threads read
/// it into pinned memory, each with two pieces, one of which is on its way.
class WeightUpload {
 public:
  WeightUpload();
  ~WeightUpload();
  WeightUpload(const WeightUpload&) = delete;

  /// The rows of `from` [n, k], which may be strided, to `to`, in a row. Done when it returns.
  void copy(void* to, const Tensor& from);

 private:
  struct Lane {
    cudaStream_t stream = nullptr;
    std::array<char*, 2> pieces = {};
    std::array<cudaEvent_t, 2> sent = {};
  };
  std::vector<Lane> lanes_;
  int device_ = 0;
};

}  // namespace nanovllm::cuda
