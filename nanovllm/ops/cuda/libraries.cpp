#include "nanovllm/ops/cuda/libraries.h"

#include <dlfcn.h>

#include <cstdlib>
#include <filesystem>
#include <vector>

#include "nanovllm/base/check.h"

namespace nanovllm::cuda {

namespace {

/// Folders to look in besides the loader's own.
std::vector<std::string> folders(const char* wheel_folder) {
  std::vector<std::string> out = {"/usr/local/cuda/lib64/"};
  for (const char* name : {"CUDA_HOME", "CUDA_PATH"})
    if (const char* home = std::getenv(name)) out.push_back(std::string(home) + "/lib64/");
  std::vector<std::string> roots;
  if (const char* environment = std::getenv("VIRTUAL_ENV")) roots.emplace_back(environment);
  roots.insert(roots.end(), {"/usr/local", "/usr"});
  for (const std::string& root : roots) {
    std::error_code error;
    for (const auto& python : std::filesystem::directory_iterator(root + "/lib", error))
      if (python.path().filename().string().starts_with("python3"))
        for (const char* packages : {"/site-packages/", "/dist-packages/"})
          out.push_back(python.path().string() + packages + wheel_folder + "/");
  }
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
          "{} is missing: install the CUDA toolkit's, or PyPI's package {} into the virtual "
          "environment in use",
          name, package);
}

SharedLibrary::Symbol SharedLibrary::find(const char* name) const {
  void* function = dlsym(handle_, name);
  require(function != nullptr, "{} has no function {}; it is too old", name_, name);
  return {function};
}

}  // namespace nanovllm::cuda
