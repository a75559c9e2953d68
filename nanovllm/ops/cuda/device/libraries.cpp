#include "nanovllm/ops/cuda/device/libraries.h"

#include <dlfcn.h>

#include <filesystem>
#include <vector>

#include "nanovllm/base/check.h"

namespace nanovllm::cuda {

namespace {

/// Folders to search after the loader's own: the toolkit's, the Python environment that contains
/// this library, and the system's Python packages.
std::vector<std::string> folders(const char* wheel_folder) {
  std::vector<std::string> out = {"/usr/local/cuda/lib64/"};
  std::error_code error;
  Dl_info here;
  if (dladdr(reinterpret_cast<const void*>(&folders), &here) != 0)
    for (auto above = std::filesystem::canonical(here.dli_fname, error).parent_path();
         above.has_relative_path(); above = above.parent_path())
      if (above.filename() == "site-packages") out.push_back((above / wheel_folder).string() + "/");
  for (const char* root : {"/usr/local/lib", "/usr/lib"})
    for (const auto& python : std::filesystem::directory_iterator(root, error))
      if (python.path().filename().string().starts_with("python3"))
        for (const char* packages : {"site-packages", "dist-packages"})
          out.push_back((python.path() / packages / wheel_folder).string() + "/");
  return out;
}

}  // namespace

SharedLibrary::SharedLibrary(const char* name, const char* wheel_folder, const char* package)
    : name_(name) {
  handle_ = dlopen(name, RTLD_NOW | RTLD_LOCAL);
  if (handle_ == nullptr)
    for (const std::string& folder : folders(wheel_folder))
      if (handle_ = dlopen((folder + name).c_str(), RTLD_NOW | RTLD_LOCAL); handle_ != nullptr)
        break;
  require(handle_ != nullptr,
          "{} is missing: install the CUDA toolkit's, or PyPI's package {}, or put its folder into "
          "LD_LIBRARY_PATH",
          name, package);
}

Symbol SharedLibrary::find(const char* name) const {
  void* function = dlsym(handle_, name);
  require(function != nullptr, "{} has no function {}; it is too old", name_, name);
  return {function};
}

}  // namespace nanovllm::cuda
