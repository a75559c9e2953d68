#include "nanovllm/hub/download/curl_library.h"

#include <dlfcn.h>

#include <stdexcept>

namespace nanovllm::hub {

namespace {

template <class Function>
void find(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(::dlsym(library, name));
  if (function == nullptr)
    throw std::runtime_error(
        "libcurl is too old to download a model; version 7.84 or newer is needed");
}

CurlLibrary load() {
  void* library = nullptr;
  for (const char* name : {"libcurl.so.4", "libcurl-gnutls.so.4"})
    if (library == nullptr) library = ::dlopen(name, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr)
    throw std::runtime_error(
        "libcurl is needed to download a model: install the package libcurl4, or give the path of "
        "a folder with the model");
  CurlLibrary curl{};
  find(library, "curl_global_init", curl.global_init);
  find(library, "curl_easy_init", curl.easy_init);
  find(library, "curl_easy_cleanup", curl.easy_cleanup);
  find(library, "curl_easy_setopt", curl.easy_setopt);
  find(library, "curl_easy_perform", curl.easy_perform);
  find(library, "curl_easy_getinfo", curl.easy_getinfo);
  find(library, "curl_easy_strerror", curl.easy_strerror);
  find(library, "curl_easy_header", curl.easy_header);
  find(library, "curl_easy_escape", curl.easy_escape);
  find(library, "curl_free", curl.free);
  if (curl.global_init(CURL_GLOBAL_DEFAULT) != CURLE_OK)
    throw std::runtime_error("libcurl cannot be initialized");
  return curl;
}

}  // namespace

const CurlLibrary& curl_library() {
  static const CurlLibrary curl = load();
  return curl;
}

}  // namespace nanovllm::hub
