#include "nanovllm/server/http/api_error.h"

#include <fmt/format.h>

#include <utility>

#include "nanovllm/base/json.h"
#include "nanovllm/server/http/json_text.h"

namespace nanovllm::server {

namespace {

/// A text that the client has sent, for a message. It is shortened, because the message goes back
/// to the client and into the log.
std::string shown(std::string_view text) {
  constexpr size_t kMostBytes = 200;
  return printable(Json(text.substr(0, kMostBytes)));
}

void append_text_or_null(std::string& to, std::string_view name, std::string_view text) {
  to += name;
  if (text.empty()) to += "null";
  else append_json_string(to, text);
}

bool is_anthropic(std::string_view path) { return path.starts_with("/v1/messages"); }
bool is_responses(std::string_view path) { return path.starts_with("/v1/responses"); }

/// Anthropic's names of errors. Names that are missing here are the same in both APIs.
std::string_view anthropic_type(const ApiError& error) {
  if (error.status == 413) return "request_too_large";
  if (error.status == 503) return "overloaded_error";
  return error.status >= 500 ? "api_error" : error.type();
}

}  // namespace

ApiError::ApiError(int status_, const std::string& message, std::string param_, std::string code_)
    : UserError(message), status(status_), param(std::move(param_)), code(std::move(code_)) {}

ApiError ApiError::wrong_key() {
  return {401, "the API key is missing or wrong; send it in the header 'Authorization: Bearer KEY'",
          "", "invalid_api_key"};
}

ApiError ApiError::foreign_host(std::string_view name) {
  return {
      403,
      fmt::format("{} is not a name of this server; 'nanovllm serve --allowed-hosts NAME' allows "
                  "more names",
                  shown(name)),
      "", "host_not_allowed"};
}

ApiError ApiError::foreign_origin(std::string_view origin) {
  return {403,
          fmt::format("pages of the origin {} may not use this server; 'nanovllm serve "
                      "--allowed-origins ORIGIN' allows an origin",
                      shown(origin)),
          "", "origin_not_allowed"};
}

ApiError ApiError::not_json(std::string_view content_type) {
  return {415,
          fmt::format("the Content-Type is {}; that of a request from a page must be "
                      "\"application/json\"",
                      shown(content_type)),
          "", "unsupported_media_type"};
}

ApiError ApiError::unknown_model(std::string_view name) {
  return {404,
          fmt::format("the model {} does not exist; /v1/models lists those that do", shown(name)),
          "model", "model_not_found"};
}

ApiError ApiError::unknown_response(std::string_view id) {
  return {404, fmt::format("the response {} is not stored here", shown(id)), "id",
          "response_not_found"};
}

ApiError ApiError::unknown_route(std::string_view method, std::string_view path) {
  return {404,
          fmt::format("there is no {} {}. This server answers conversations and completions: POST "
                      "/v1/chat/completions, /v1/responses, /v1/completions and Anthropic's "
                      "/v1/messages; GET /v1/models names the model. All routes are listed in "
                      "nanovllm's docs/serving.md",
                      shown(method), shown(path)),
          "", "unknown_url"};
}

ApiError ApiError::wrong_method(std::string_view method, std::string_view path,
                                std::string allowed) {
  ApiError error(405, fmt::format("{} does not take {}", shown(path), shown(method)), "",
                 "method_not_allowed");
  error.allowed = std::move(allowed);
  return error;
}

ApiError ApiError::too_slow() {
  return {408, "the request did not arrive completely in time", "", "request_timeout"};
}

ApiError ApiError::too_large(size_t most_bytes) {
  return {413, fmt::format("the body has more than {} bytes", most_bytes), "", "request_too_large"};
}

ApiError ApiError::prompt_too_long(const std::string& message, std::string_view path) {
  return {400, message,
          path == "/v1/completions" ? "prompt"
          : is_responses(path)      ? "input"
                                    : "messages",
          "context_length_exceeded"};
}

ApiError ApiError::queue_full(int64_t most_requests) {
  return {429,
          fmt::format("{} requests are running or waiting already; try again later", most_requests),
          "", "rate_limit_exceeded"};
}

ApiError ApiError::bodies_too_large(size_t most_of_one, size_t most_of_all) {
  return {
      503,
      fmt::format("the bodies of the requests that arrive have too many bytes: at most {} of one "
                  "client, and {} together; try again later",
                  most_of_one, most_of_all),
      "", "overloaded"};
}

ApiError ApiError::shutting_down() {
  return {503, "the server is shutting down; try again later", "", "shutting_down"};
}

std::string_view ApiError::type() const {
  if (status == 401) return "authentication_error";
  if (status == 403) return "permission_error";
  if (status == 404) return "not_found_error";
  if (status == 429) return "rate_limit_error";
  return status >= 500 ? "server_error" : "invalid_request_error";
}

std::string_view ApiError::event(std::string_view path) {
  return is_anthropic(path) || is_responses(path) ? "error" : "";
}

std::string ApiError::event_data(std::string_view path, size_t num_events) const {
  if (!is_responses(path)) return body(path);
  std::string data;
  append_text_or_null(data, R"({"type":"error","code":)", code.empty() ? type() : code);
  append_text_or_null(data, R"(,"message":)", what());
  append_member(data, R"(,"param":null,"sequence_number":)", static_cast<int64_t>(num_events));
  return data + '}';
}

std::vector<std::pair<std::string, std::string>> ApiError::headers() const {
  std::vector<std::pair<std::string, std::string>> headers;
  if (status == 429 || status == 503) headers.emplace_back("Retry-After", "1");
  if (!allowed.empty()) headers.emplace_back("Allow", allowed);
  if (status == 401) headers.emplace_back("WWW-Authenticate", "Bearer");
  return headers;
}

std::string ApiError::body(std::string_view path) const {
  std::string body;
  if (is_anthropic(path)) {
    append_text_or_null(body, R"({"type":"error","error":{"type":)", anthropic_type(*this));
    append_text_or_null(body, R"(,"message":)", what());
    return body + "}}";
  }
  append_text_or_null(body, R"({"error":{"message":)", what());
  append_text_or_null(body, R"(,"type":)", type());
  append_text_or_null(body, R"(,"param":)", param);
  append_text_or_null(body, R"(,"code":)", code);
  return body + "}}";
}

}  // namespace nanovllm::server
