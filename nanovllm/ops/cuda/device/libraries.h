#pragma once

#include <string>

#include "nanovllm/ops/cuda/device/runtime.h"

namespace nanovllm::cuda {

/// One of NVIDIA's libraries, opened at run time from the loader's path, the toolkit or PyPI's
/// packages. It is never closed.
class SharedLibrary {
 public:
  /// `wheel_folder` is the library's folder below site-packages. Throws UserError that names
  /// `package` if the library is missing.
  SharedLibrary(const char* name, const char* wheel_folder, const char* package);

  /// Throws UserError if the library has no function of this name.
  Symbol find(const char* name) const;

 private:
  void* handle_ = nullptr;
  std::string name_;
};

}  // namespace nanovllm::cuda
