#pragma once

#include "nanovllm/server/http/access_log.h"
#include "nanovllm/server/http/http.h"

namespace nanovllm::server {

/// Serves the requests of one connection, one after the other, until it closes. HTTP/1.1 with
/// keep-alive, pipelining and chunked bodies, and HTTP/1.0. Requests that are malformed or too
/// large, or arrive too slowly, get an error, and the connection ends. It also ends if the client
/// is too slow to accept what was written. Every request is written to `access_log`, if there is
/// one.
Task<> serve_connection(asio::generic::stream_protocol::socket socket, const HttpLimits& limits,
                        const HttpHandler& handler, const AccessLog* access_log = nullptr);

}  // namespace nanovllm::server
