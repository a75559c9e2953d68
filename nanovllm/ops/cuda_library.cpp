#include "nanovllm/ops/cuda_library.h"

#include <dlfcn.h>

#include <filesystem>
#include <string>

#include "nanovllm/base/check.h"

namespace nanovllm {

namespace {

constexpr const char* kLibrary = "libnanovllm_cuda.so";

/// The library is never closed, because objects from it may outlive any scope.
void* open_library() {
  Dl_info here;
  std::string why = "it is not there";
  std::error_code error;
  if (dladdr(reinterpret_cast<const void*>(&open_library), &here) != 0) {
    const auto folder = std::filesystem::canonical(here.dli_fname, error).parent_path();
    const auto above = folder.parent_path();  // for the tests in the build folder, and for bin/
    for (const auto& path : {folder / kLibrary, above / kLibrary, above / "lib" / kLibrary}) {
      if (!std::filesystem::exists(path, error)) continue;
      if (void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL)) return library;
      why = dlerror();
    }
  }
  if (void* library = dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL)) return library;
  fail(
      "this build has no CUDA backend ({}: {}); use --device cpu or auto, or build it "
      "on a machine with nvcc",
      kLibrary, why);
}

}  // namespace

bool has_cuda_driver() {
  static void* const driver = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL);
  return driver != nullptr;
}

std::unique_ptr<Backend> make_cuda_backend(CudaKernels kernels, Rank rank) {
  require(has_cuda_driver(), "no NVIDIA driver on this machine (libcuda.so.1 is missing)");
  static void* const library = open_library();
  using Make = Backend* (*)(CudaKernels, Rank);
  const auto make = reinterpret_cast<Make>(dlsym(library, "nanovllm_make_cuda_backend"));
  require(make != nullptr, "{} is of another version", kLibrary);
  return std::unique_ptr<Backend>(make(kernels, rank));
}

}  // namespace nanovllm
