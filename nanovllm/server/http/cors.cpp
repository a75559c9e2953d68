#include "nanovllm/server/http/cors.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "nanovllm/server/http/http.h"

namespace nanovllm::server {

namespace {

bool allows_all(const std::vector<std::string>& list) { return std::ranges::count(list, "*") > 0; }

/// The list as a header's value. With credentials, browsers take "*" literally, so what was asked
/// for is repeated.
std::string allowed(const std::vector<std::string>& list, std::string_view asked) {
  return allows_all(list) ? std::string(asked) : fmt::format("{}", fmt::join(list, ", "));
}

}  // namespace

HttpHeaders cors_headers(const CorsOptions& options, const HttpRequest& request) {
  HttpHeaders headers;
  if (options.origins.empty()) return headers;
  const std::string_view origin = request.header("Origin");
  // The response differs by origin even for a request without one; a cache has to know.
  const bool is_public = allows_all(options.origins) && !options.allows_credentials;
  if (!is_public) headers.emplace_back("Vary", "Origin");
  const bool is_allowed =
      allows_all(options.origins) || std::ranges::count(options.origins, origin) > 0;
  if (origin.empty() || !is_allowed) return headers;
  headers.emplace_back("Access-Control-Allow-Origin", is_public ? "*" : origin);
  if (options.allows_credentials) headers.emplace_back("Access-Control-Allow-Credentials", "true");
  headers.emplace_back("Access-Control-Expose-Headers", "X-Request-Id, Retry-After");
  return headers;
}

bool is_preflight(const HttpRequest& request) {
  return request.method == "OPTIONS" && !request.header("Origin").empty() &&
         !request.header("Access-Control-Request-Method").empty();
}

HttpHeaders preflight_headers(const CorsOptions& options, const HttpRequest& request) {
  HttpHeaders headers;
  headers.emplace_back("Access-Control-Allow-Methods",
                       allowed(options.methods, request.header("Access-Control-Request-Method")));
  if (const std::string_view asked = request.header("Access-Control-Request-Headers");
      !asked.empty())
    headers.emplace_back("Access-Control-Allow-Headers", allowed(options.headers, asked));
  headers.emplace_back("Access-Control-Max-Age", "600");
  return headers;
}

}  // namespace nanovllm::server
