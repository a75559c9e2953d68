#pragma once

#include <string>
#include <utility>
#include <vector>

namespace nanovllm::server {

// Declared as in http.h, which is not included here: code that only sets options then needs no
// Asio.
struct HttpRequest;
using HttpHeaders = std::vector<std::pair<std::string, std::string>>;

/// Which pages of other origins may use the server from a browser (cross-origin resource sharing).
/// "*" allows all. Without origins the server sends no CORS headers, so browsers refuse.
struct CorsOptions {
  std::vector<std::string> origins, methods = {"*"}, headers = {"*"};
  bool allows_credentials = false;
};

/// The headers of the response to a request of an allowed origin; empty if it comes from none.
HttpHeaders cors_headers(const CorsOptions& options, const HttpRequest& request);
/// Whether a browser asks if it may send a request.
bool is_preflight(const HttpRequest& request);
/// The headers of the response to an allowed preflight request, besides cors_headers().
HttpHeaders preflight_headers(const CorsOptions& options, const HttpRequest& request);

}  // namespace nanovllm::server
