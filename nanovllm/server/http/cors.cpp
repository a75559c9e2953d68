#include "nanovllm/server/http/cors.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "nanovllm/base/strings/join.h"
#include "nanovllm/server/http/api_error.h"
#include "nanovllm/server/http/host.h"
#include "nanovllm/server/http/http.h"

namespace nanovllm::server {

namespace {

bool allows_all(const std::vector<std::string>& list) { return std::ranges::count(list, "*") > 0; }

/// The list as a header's value. With credentials, browsers take "*" literally, so instead of it
/// the value that the browser asked for is repeated.
std::string allowed(const std::vector<std::string>& list, std::string_view asked) {
  return allows_all(list) ? std::string(asked) : join(list, ", ");
}

/// Schemes of pages that belong to programs on the client's machine. Extensions of browsers are not
/// among them: their scheme says nothing about who wrote them, so each has to be allowed.
constexpr std::array<std::string_view, 5> kLocalSchemes = {"app", "file", "tauri", "vscode-file",
                                                           "vscode-webview"};

/// Whether an origin belongs to a page of this server, of this machine, or of a local program.
bool is_own(std::string_view origin, const HttpRequest& request) {
  const size_t end = origin.find("://");
  if (end == std::string_view::npos) return false;
  const std::string_view scheme = origin.substr(0, end);
  if (std::ranges::count(kLocalSchemes, scheme) > 0) return true;
  const bool is_https = scheme == "https";
  if (!is_https && scheme != "http") return false;
  std::optional<Authority> page = parse_authority(origin.substr(end + 3));
  if (!page) return false;
  if (is_loopback(page->name)) return true;
  std::optional<Authority> server = request.authority;
  for (std::optional<Authority>* side : {&page, &server})
    if (*side && (*side)->port.empty()) (*side)->port = is_https ? "443" : "80";
  return page == server;
}

}  // namespace

void check_origin(const CorsOptions& options, const HttpRequest& request) {
  // Only browsers set this header, and no page can. Browsers know the URL that the page has used,
  // also if a proxy has changed Host.
  if (request.header("Sec-Fetch-Site") == "same-origin") return;
  for (const auto& [name, value] : request.headers) {
    if (!equal_in_any_case(name, "Origin")) continue;
    const bool is_allowed =
        allows_all(options.origins) || std::ranges::count(options.origins, value) > 0;
    if (!is_allowed && !is_own(value, request)) throw ApiError::foreign_origin(value);
  }
}

void check_content_type(const HttpRequest& request) {
  if (!request.has_body || request.header("Origin").empty()) return;
  const std::string_view given = request.header("Content-Type");
  std::string_view type = given.substr(0, given.find(';'));
  while (type.ends_with(' ') || type.ends_with('\t')) type.remove_suffix(1);
  constexpr std::string_view kJsonSuffix = "+json";
  const std::string_view suffix =
      type.substr(type.size() - std::min(type.size(), kJsonSuffix.size()));
  if (!equal_in_any_case(type, "application/json") && !equal_in_any_case(suffix, kJsonSuffix))
    throw ApiError::not_json(given);
}

HttpHeaders cors_headers(const CorsOptions& options, const HttpRequest& request) {
  HttpHeaders headers;
  if (options.origins.empty()) return headers;
  const std::string_view origin = request.header("Origin");
  // The response depends on the origin, which caches have to know even if a request has none.
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
