#pragma once

#include <string>
#include <utility>
#include <vector>

namespace nanovllm::server {

// These declarations are copied from http.h. Without that header, code that only sets options needs
// no Asio.
struct HttpRequest;
using HttpHeaders = std::vector<std::pair<std::string, std::string>>;

/// Which pages of other origins may use the server from a browser (cross-origin resource sharing).
/// "*" allows all. Without origins the server sends no CORS headers, so browsers refuse.
struct CorsOptions {
  std::vector<std::string> origins, methods = {"*"}, headers = {"*"};
  bool allows_credentials = false;
};

/// Throws ApiError for a request from a page of another site that is not allowed. The pages of this
/// server, of this machine, and of local programs such as Electron's are allowed: their origin is
/// the request's own scheme and authority, a name of the loopback interface, or a scheme that no
/// site has. A page whose origin is hidden ("null") counts as a page of another site.
void check_origin(const CorsOptions& options, const HttpRequest& request);
/// Throws ApiError for a body from a page that is not declared as JSON. Browsers let a page send
/// other types to any server without asking it first.
void check_content_type(const HttpRequest& request);
/// The headers of the response to a request; empty if the request does not come from an allowed
/// origin.
HttpHeaders cors_headers(const CorsOptions& options, const HttpRequest& request);
/// Whether the request is a browser's question if it may send a request.
bool is_preflight(const HttpRequest& request);
/// The headers of the response to an allowed preflight request, besides cors_headers().
HttpHeaders preflight_headers(const CorsOptions& options, const HttpRequest& request);

}  // namespace nanovllm::server
