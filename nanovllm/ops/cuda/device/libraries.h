#pragma once

#include <string>

namespace nanovllm::cuda {

/// One of NVIDIA's libraries, opened at run time from the loader's path, the toolkit or PyPI's
/// packages. It is never closed.
class SharedLibrary {
 public:
  /// `wheel_folder` is the library's folder below site-packages. Throws UserError that names
  /// `package` if the library is missing.
  SharedLibrary(const char* name, const char* wheel_folder, const char* package);

  /// A function, which converts to the type that it is assigned to.
  struct Symbol {
    void* address;
    template <class Function>
    operator Function*() const {  // NOLINT(google-explicit-constructor): that is its use
      return reinterpret_cast<Function*>(address);
    }
  };
  Symbol find(const char* name) const;

 private:
  void* handle_ = nullptr;
  std::string name_;
};

}  // namespace nanovllm::cuda
