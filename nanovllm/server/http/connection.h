#pragma once

#include "nanovllm/server/http/access_log.h"
#include "nanovllm/server/http/http.h"

namespace nanovllm::server {

/// How a request that is not refused is received.
struct Admitted {
  /// Reads the body. If false, a body is not read, and the connection ends after the answer.
  bool takes_body = true;
  std::string client = {};  ///< whose share of HttpLimits::all_body_bytes the body takes
};

/// The state that all connections share. Used by the I/O thread only.
struct HttpService {
  HttpHandler handler;
  /// Is called before the body is read, and throws ApiError if the request is refused whatever its
  /// body says; `handler` is then not called.
  std::function<Admitted(const HttpRequest&)> admit = [](const HttpRequest& request) {
    return Admitted{.client = request.address};
  };
  /// The headers that every response to a request has.
  std::function<HttpHeaders(const HttpRequest&)> more_headers = [](const HttpRequest&) {
    return HttpHeaders();
  };
  HttpLimits limits = {};
  const AccessLog* access_log = nullptr;  ///< every request is written to it, if there is one
  BodyBudget bodies = {};
};

/// Serves the requests of one connection, one after the other, until it closes: HTTP/1.1 with
/// keep-alive, pipelining and chunked bodies, and HTTP/1.0. Requests that are malformed or too
/// large, or arrive too slowly, get an error, and the connection ends. It also ends after a request
/// whose body was not read, and if the client is too slow to accept what was written.
Task<> serve_connection(asio::generic::stream_protocol::socket socket, HttpService& service);

}  // namespace nanovllm::server
