#pragma once

#include <cuda.h>
#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <source_location>

// The folder device/ has the code that all kernels and the backend share and that knows no models.
// Read this file first: errors, contexts and launches for host code. Then device.cuh: functions for
// device code on every GPU; mma.cuh: matrix instructions of a warp; hopper.cuh, wgmma.cuh and
// tensor_map.cuh: instructions that only Hopper has; libraries.h: NVIDIA's libraries, opened at run
// time.
namespace nanovllm::cuda {

/// Throws std::runtime_error if `error` is one, with CUDA's message, what was tried and the place
/// in the source.
void cuda_check(cudaError_t error, const char* what,
                std::source_location where = std::source_location::current());

/// base/check.h's check() for .cu files, since nvcc cannot compile fmt's compile-time formats.
void check_args(bool ok, const char* what,
                std::source_location where = std::source_location::current());

/// The address of a function of a library that is opened at run time. It converts to the pointer
/// type that it is assigned to.
struct Symbol {
  void* address;
  template <class Function>
  operator Function*() const {  // NOLINT(google-explicit-constructor): that is its use
    return reinterpret_cast<Function*>(address);
  }
};
/// A function of the driver's API, found by the runtime library, so that nothing links libcuda.
/// Throws if the driver is older than `version` (12000 is 12.0).
Symbol driver_function(const char* name, unsigned version);

/// A GPU's primary context, the one that the runtime API works in.
CUcontext primary_context(int device);

/// Makes this context current for the calling thread, and restores the previous one at the end,
/// because the engine's caller decides which GPU is current and may change it between two calls. A
/// thread that had no context keeps this one.
class ContextScope {
 public:
  explicit ContextScope(CUcontext context);
  ~ContextScope();
  ContextScope(const ContextScope&) = delete;

 private:
  CUcontext before_ = nullptr;  // null: there is nothing to restore
};

/// Whether kernels of several processes may run on a GPU at the same time (MPS).
bool is_shared_by_processes(int device);

/// Bytes of shared memory that a thread block can have on the current GPU, and on every GPU from
/// Ampere on.
int64_t most_shared_bytes();
inline constexpr int64_t kLeastSharedBytes = 99 << 10;
void allow_most_shared_memory(const void* kernel);

/// Allows a kernel as much dynamic shared memory as the current GPU gives a thread block. All
/// launches use this one value, so that none lowers what a launch in another engine's graph needs.
/// Only the first call for a kernel has an effect.
template <auto kKernel>
void allow_shared_memory() {
  [[maybe_unused]] static const bool done =
      (allow_most_shared_memory(reinterpret_cast<const void*>(kKernel)), true);
}

/// Where kernels run.
struct Launch {
  cudaStream_t stream = nullptr;
  bool overlaps = false;  ///< the device has programmatic dependent launch (9.0 and later)
  int num_sms = 1;
  int64_t shared_bytes = kLeastSharedBytes;  ///< shared memory that a thread block can have
  int most_in_cluster = 8;  ///< most thread blocks of a cluster; every Hopper GPU allows 8
};

}  // namespace nanovllm::cuda
