#pragma once

#include <cuda.h>
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

/// A function of the driver's API, which the runtime library finds: nothing links libcuda. Throws
/// where the driver is older than `version` (12000 is 12.0).
void* driver_function(const char* name, unsigned version);

/// A GPU's primary context, the one that the runtime API works in.
CUcontext primary_context(int device);

/// While it lives, the calling thread works in this context; then in the one before, whatever that
/// was: which GPU is current is the caller's choice, and it may change between two calls. A thread
/// that had no context keeps this one.
class ContextScope {
 public:
  explicit ContextScope(CUcontext context);
  ~ContextScope();
  ContextScope(const ContextScope&) = delete;

 private:
  CUcontext before_ = nullptr;  // null: nothing to put back
};

void allow_most_shared_memory(const void* kernel);

/// Lets a kernel be launched with as much dynamic shared memory as a block of the current GPU may
/// have: one value for all launches, so that none takes away what a launch in another engine's
/// graph needs. Only the first call for a kernel does something.
template <auto kKernel>
void allow_shared_memory() {
  [[maybe_unused]] static const bool done =
      (allow_most_shared_memory(reinterpret_cast<const void*>(kKernel)), true);
}

/// Where kernels go.
struct Launch {
  cudaStream_t stream = nullptr;
  bool overlaps = false;  ///< the device has programmatic dependent launch (9.0 and later)
  int num_sms = 1;
};

}  // namespace nanovllm::cuda
