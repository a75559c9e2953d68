#include "nanovllm/server/http/head.h"

#include <algorithm>

#include "nanovllm/server/http/api_error.h"
#include "nanovllm/server/http/ids.h"

namespace nanovllm::server {

namespace http = boost::beast::http;

namespace {

constexpr size_t kLongestId = 128;

std::string_view to_view(boost::string_view text) { return {text.data(), text.size()}; }

/// The two parts of a target that is a whole URL, as a client of a proxy writes it. A target that
/// is only a path has no authority.
struct Target {
  std::optional<std::string_view> authority;
  std::string_view path;  ///< with the query
};

Target parse_target(std::string_view target) {
  for (const std::string_view scheme : {"http://", "https://"}) {
    if (!equal_in_any_case(target.substr(0, scheme.size()), scheme)) continue;
    target.remove_prefix(scheme.size());
    const size_t end = std::min(target.find_first_of("/?"), target.size());
    const std::string_view path = target.substr(end);
    return {target.substr(0, end), path.starts_with('/') ? path : "/"};
  }
  return {std::nullopt, target};
}

/// The name by which the client calls the server, unparsed. A whole URL replaces Host (RFC 9112,
/// 3.2.2).
std::optional<std::string_view> authority_of(const HttpHead& head) {
  const Target target = parse_target(to_view(head.target()));
  if (target.authority) return target.authority;
  const auto host = head.find(http::field::host);
  if (host == head.end()) return std::nullopt;
  return to_view(host->value());
}

}  // namespace

HttpRequest read_head(const HttpHead& head) {
  HttpRequest request;
  request.method = std::string(to_view(head.method_string()));
  const std::string_view path = parse_target(to_view(head.target())).path;
  request.path = std::string(path.substr(0, path.find('?')));
  for (const auto& field : head)
    request.headers.emplace_back(to_view(field.name_string()), to_view(field.value()));
  if (const auto authority = authority_of(head)) request.authority = parse_authority(*authority);
  request.id = std::string(request.header("X-Request-Id"));
  const auto is_plain = [](char c) { return c > ' ' && c < 127; };
  if (request.id.empty() || request.id.size() > kLongestId ||
      !std::ranges::all_of(request.id, is_plain))
    request.id = new_id("req-");
  return request;
}

void check_head(const HttpHead& head, const HttpRequest& request) {
  const bool is_old = head.version() < 11;
  const size_t num_hosts = head.count(http::field::host);
  if (num_hosts > 1 || (num_hosts == 0 && !is_old))
    throw ApiError(400, "not a valid HTTP request: it must have one header 'Host'");
  if (authority_of(head) && !request.authority)
    throw ApiError(400,
                   "not a valid HTTP request: the host must be a name or an address, and may "
                   "have a port");
  const size_t num_lengths = head.count(http::field::content_length);
  const bool has_list = to_view(head[http::field::content_length]).find(',') != std::string::npos;
  if (num_lengths > 1 || has_list)
    throw ApiError(400, "not a valid HTTP request: it must have one 'Content-Length' at most");
  const size_t num_encodings = head.count(http::field::transfer_encoding);
  if (num_encodings > 0 && is_old)
    throw ApiError(400, "not a valid HTTP request: HTTP/1.0 has no 'Transfer-Encoding'");
  if (num_encodings > 1 ||
      (num_encodings == 1 &&
       !equal_in_any_case(to_view(head[http::field::transfer_encoding]), "chunked")))
    throw ApiError(501, "the only Transfer-Encoding that is supported is 'chunked'");
}

bool has_folded_line(std::string_view headers) {
  for (const std::string_view fold : {"\n ", "\n\t"})
    if (headers.find(fold) != std::string_view::npos) return true;
  return false;
}

}  // namespace nanovllm::server
