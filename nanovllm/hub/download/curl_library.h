#pragma once

#include <curl/curl.h>

namespace nanovllm::hub {

/// The functions of libcurl that this program uses. The library is loaded when something is
/// downloaded for the first time: with the thirty libraries that it needs, it would make every
/// start of the program 4 ms slower (5 ms without it), and most starts download nothing.
struct CurlLibrary {
  decltype(&::curl_global_init) global_init;
  decltype(&::curl_easy_init) easy_init;
  decltype(&::curl_easy_cleanup) easy_cleanup;
  decltype(&::curl_easy_setopt) easy_setopt;
  decltype(&::curl_easy_perform) easy_perform;
  decltype(&::curl_easy_getinfo) easy_getinfo;
  decltype(&::curl_easy_strerror) easy_strerror;
  decltype(&::curl_easy_header) easy_header;
  decltype(&::curl_easy_escape) easy_escape;
  decltype(&::curl_free) free;
};

/// Thread-safe. Throws std::runtime_error that says what to install if there is no libcurl.
const CurlLibrary& curl_library();

}  // namespace nanovllm::hub
