#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "nanovllm/ops/backend.h"
#include "nanovllm/ops/cuda/collectives/collectives.h"
#include "nanovllm/ops/cuda/device/runtime.h"
#include "nanovllm/ops/cuda_library.h"

namespace nanovllm::cuda {

/// An event without timing. It counts as reached until it is recorded.
class Event {
 public:
  Event() { cuda_check(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming), "event"); }
  ~Event() { cudaEventDestroy(event_); }
  Event(const Event&) = delete;
  void record(cudaStream_t stream) const { cuda_check(cudaEventRecord(event_, stream), "event"); }
  cudaEvent_t get() const { return event_; }

 private:
  cudaEvent_t event_ = nullptr;
};

/// Memory that is replaced by larger memory when necessary. Its contents are lost then, and so are
/// the graphs that contain the old address (ownership.memory).
struct Growing {
  bool in_graphs = false;
  bool pinned = false;  ///< pinned host memory instead of device memory
  size_t bytes = 0;
  Buffer memory = {};
  template <class T>
  T* as() const {
    return static_cast<T*>(memory.get());
  }
};

/// One GPU in its primary context, its memory, and the stream in which this backend works. The
/// context must be current in every call (ContextScope).
class Device {
 public:
  /// Throws UserError if there are fewer GPUs than ranks, or if this one is too old.
  Device(const CudaKernels& kernels, Rank rank);
  ~Device();
  Device(const Device&) = delete;

  Memory memory() const;
  /// Zeroed memory. Throws UserError that names the size if there is not enough.
  Buffer allocate(size_t bytes);
  void grow(Growing& buffer, size_t bytes);
  void upload(void* device, const void* host, size_t bytes);
  void download(void* host, const void* device, size_t bytes);
  /// Waits for an event. With several ranks it throws EngineDead if one of them dies before.
  void wait(const Event& event) { wait(event.get()); }
  void wait(cudaEvent_t event);
  void wait_for_stream();

  const Rank rank;
  const CUcontext context;
  Launch where;
  CudaKernels kernels;
  cudaDeviceProp properties = {};
  Collectives* collectives = nullptr;  ///< of several ranks; null: the only one
  /// How often memory was replaced that graphs may contain: older graphs must not be launched.
  uint64_t num_replaced = 0;

  /// Portable kernels were requested, or the GPU is not Hopper.
  bool portable() const { return kernels.portable; }

 private:
  Buffer allocate_pinned(size_t bytes);

  cudaEvent_t stream_end_ = nullptr;
};

}  // namespace nanovllm::cuda
