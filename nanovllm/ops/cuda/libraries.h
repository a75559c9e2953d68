#pragma once

#include <string>

namespace nanovllm::cuda {

/// One of NVIDIA's libraries, opened at run time: by the loader's path, in the toolkit, among
/// PyPI's packages. Stays open.
class SharedLibrary {
 public:
  /// `wheel_folder` is the library's below site-packages. Throws UserError that names `package`.
  SharedLibrary(const char* name, const char* wheel_folder, const char* package);

  template <class Function>
  Function function(const char* name) const {
    return reinterpret_cast<Function>(find(name));
  }

 private:
  void* find(const char* name) const;
  void* handle_ = nullptr;
  std::string name_;
};

}  // namespace nanovllm::cuda
