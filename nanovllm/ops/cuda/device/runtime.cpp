#include "nanovllm/ops/cuda/device/runtime.h"

#include <fmt/format.h>

#include <stdexcept>

namespace nanovllm::cuda {

void cuda_check(cudaError_t error, const char* what, std::source_location where) {
  if (error == cudaSuccess) [[likely]]
    return;
  throw std::runtime_error(fmt::format("{}:{}: CUDA, {}: {} ({})", where.file_name(), where.line(),
                                       what, cudaGetErrorString(error), cudaGetErrorName(error)));
}

void check_args(bool ok, const char* what, std::source_location where) {
  if (ok) [[likely]]
    return;
  throw std::logic_error(fmt::format("{}:{}: {}", where.file_name(), where.line(), what));
}

Symbol driver_function(const char* name, unsigned version) {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found;
  cuda_check(cudaGetDriverEntryPointByVersion(name, &function, version, cudaEnableDefault, &found),
             name);
  if (function == nullptr)
    throw std::runtime_error(fmt::format("the NVIDIA driver is too old: it has no {}", name));
  return {function};
}

namespace {

struct ContextFunctions {
  decltype(&cuCtxGetCurrent) get_current = driver_function("cuCtxGetCurrent", 4000);
  decltype(&cuCtxSetCurrent) set_current = driver_function("cuCtxSetCurrent", 4000);
  decltype(&cuDevicePrimaryCtxRetain) retain = driver_function("cuDevicePrimaryCtxRetain", 7000);

  static const ContextFunctions& get() {
    static const ContextFunctions functions;
    return functions;
  }
};

}  // namespace

CUcontext primary_context(int device) {
  CUcontext context = nullptr;
  // The context is never released, because the runtime library keeps it until the process ends too.
  if (ContextFunctions::get().retain(&context, device) != CUDA_SUCCESS)
    throw std::runtime_error(fmt::format("GPU {} has no context left for this process", device));
  return context;
}

// The constructor throws nothing, because destructors that use a ContextScope may run after the
// driver has been shut down. If it fails, the next call of CUDA fails as well.
ContextScope::ContextScope(CUcontext context) {
  const ContextFunctions& driver = ContextFunctions::get();
  CUcontext before = nullptr;
  if (driver.get_current(&before) != CUDA_SUCCESS || before == context) return;
  if (driver.set_current(context) == CUDA_SUCCESS) before_ = before;
}

ContextScope::~ContextScope() {
  if (before_ != nullptr) ContextFunctions::get().set_current(before_);
}

bool is_shared_by_processes(int device) {
  int has_mps = 0;
  cuda_check(cudaDeviceGetAttribute(&has_mps, cudaDevAttrMpsEnabled, device), "device");
  return has_mps != 0;
}

int64_t most_shared_bytes() {
  int device = 0, most = 0;
  cuda_check(cudaGetDevice(&device), "device");
  cuda_check(cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device),
             "shared memory");
  return most;
}

void allow_most_shared_memory(const void* kernel) {
  cudaFuncAttributes attributes;
  cuda_check(cudaFuncGetAttributes(&attributes, kernel), "shared memory");
  cuda_check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                  static_cast<int>(most_shared_bytes()) -
                                      static_cast<int>(attributes.sharedSizeBytes)),
             "shared memory");
}

}  // namespace nanovllm::cuda
