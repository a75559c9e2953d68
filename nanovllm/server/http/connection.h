#pragma once

#include "nanovllm/server/http/access_log.h"
#include "nanovllm/server/http/http.h"

namespace nanovllm::server {

/// What all connections share. Used by the I/O thread only.
struct HttpService {
  HttpHandler handler;
  HttpLimits limits = {};
  const AccessLog* access_log = nullptr;  ///< every request is written to it, if there is one
  size_t body_bytes = 0;                  ///< of all bodies at this moment
};

/// Serves the requests of one connection, one after the other, until it closes. HTTP/1.1 with
/// keep-alive, pipelining and chunked bodies, and HTTP/1.0. Requests that are malformed or too
/// large, or arrive too slowly, get an error, and the connection ends. It also ends if the client
/// is too slow to accept what was written.
Task<> serve_connection(asio::generic::stream_protocol::socket socket, HttpService& service);

}  // namespace nanovllm::server
