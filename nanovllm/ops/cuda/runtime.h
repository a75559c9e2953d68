#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <source_location>

namespace nanovllm::cuda {

/// Throws std::runtime_error with CUDA's own words, what was tried and the place.
void cuda_check(cudaError_t error, const char* what,
                std::source_location where = std::source_location::current());

/// base/check.h's check() for kernel files: nvcc's front end does not take fmt's compile-time
/// formats.
void check_args(bool ok, const char* what,
                std::source_location where = std::source_location::current());

/// Where kernels go.
struct Launch {
  cudaStream_t stream = nullptr;
  bool overlaps = false;  ///< the device has programmatic dependent launch (9.0 and later)
  int num_sms = 1;
};

}  // namespace nanovllm::cuda
