#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "nanovllm/base/error.h"

namespace nanovllm::server {

/// An error for the client, with its HTTP status. The message is one line that says what is wrong
/// and what would be right. It is a UserError, and any other UserError that a request causes
/// becomes ApiError(400, what()).
struct ApiError : UserError {
  /// `param` is the field of the request that is wrong; empty if there is none or it is unknown.
  /// `code` is a word for programs; empty if there is none.
  ApiError(int status, const std::string& message, std::string param = {}, std::string code = {});

  static ApiError wrong_key();
  /// The error for a client that calls the server by `name`, which is not allowed.
  static ApiError foreign_host(std::string_view name);
  /// The error for a request from the page of another site, whose origin is `origin`.
  static ApiError foreign_origin(std::string_view origin);
  static ApiError not_json(std::string_view content_type);
  static ApiError unknown_model(std::string_view name);
  static ApiError unknown_response(std::string_view id);
  static ApiError unknown_route(std::string_view method, std::string_view path);
  static ApiError wrong_method(std::string_view method, std::string_view path, std::string allowed);
  static ApiError too_slow();
  static ApiError too_large(size_t most_bytes);
  /// The error for a prompt that is too long. `path` is the path of the request.
  static ApiError prompt_too_long(const std::string& message, std::string_view path);
  static ApiError queue_full(int64_t most_requests);
  static ApiError bodies_too_large(size_t most_of_one, size_t most_of_all);
  static ApiError shutting_down();

  /// OpenAI's name for this kind of error, which follows from the status.
  std::string_view type() const;
  /// {"error": {"message", "type", "param", "code"}}, or for a route of Anthropic's API
  /// {"type": "error", "error": {"type", "message"}}.
  std::string body(std::string_view path = {}) const;
  /// The headers that belong to the error, such as Retry-After.
  std::vector<std::pair<std::string, std::string>> headers() const;
  /// The data and the name of the event for the error in a stream of `num_events` so far. Only the
  /// API for completions and chats has events without names.
  std::string event_data(std::string_view path, size_t num_events) const;
  static std::string_view event(std::string_view path);

  int status;
  std::string param, code;
  std::string allowed;  ///< the methods of the route, if the status is 405
};

}  // namespace nanovllm::server
