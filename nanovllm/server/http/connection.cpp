#include "nanovllm/server/http/connection.h"

#include <fmt/format.h>
#include <netinet/in.h>

#include <algorithm>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/error.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>
#include <cstring>
#include <limits>
#include <optional>

#include "nanovllm/base/system/clock.h"
#include "nanovllm/server/http/api_error.h"
#include "nanovllm/server/http/head.h"
#include "nanovllm/server/http/reply.h"
#include "nanovllm/server/http/time_limit.h"

namespace nanovllm::server {

namespace beast = boost::beast;
namespace http = boost::beast::http;

namespace {

using Socket = asio::generic::stream_protocol::socket;
using Parser = http::request_parser<http::string_body>;

/// The response to a request that could not be read; nothing if no answer makes sense.
std::optional<ApiError> error_of(error_code error, const HttpLimits& limits) {
  if (error == http::error::body_limit) return ApiError::too_large(limits.body_bytes);
  if (error == http::error::header_limit || error == http::error::buffer_overflow)
    return ApiError(431, fmt::format("the headers are larger than {} bytes", limits.header_bytes));
  if (error.category() == make_error_code(http::error::bad_method).category())
    return ApiError(400, fmt::format("not a valid HTTP request: {}", error.message()));
  return std::nullopt;
}

/// HttpRequest::address of the client of a socket.
std::string address_of_client(const Socket& socket) {
  error_code error;
  const Socket::endpoint_type endpoint = socket.remote_endpoint(error);
  if (error) return {};
  if (endpoint.protocol().family() == AF_INET) {
    sockaddr_in address{};
    std::memcpy(&address, endpoint.data(), sizeof address);
    return asio::ip::make_address_v4(ntohl(address.sin_addr.s_addr)).to_string();
  }
  if (endpoint.protocol().family() != AF_INET6) return {};
  sockaddr_in6 address{};
  std::memcpy(&address, endpoint.data(), sizeof address);
  asio::ip::address_v6::bytes_type bytes;
  std::memcpy(bytes.data(), &address.sin6_addr, bytes.size());
  const asio::ip::address_v6 whole(bytes);
  if (whole.is_v4_mapped()) return make_address_v4(asio::ip::v4_mapped, whole).to_string();
  std::fill(bytes.begin() + bytes.size() / 2, bytes.end(), 0);
  return asio::ip::address_v6(bytes).to_string() + "/64";
}

class Connection {
 public:
  Connection(Socket socket, HttpService& service)
      : socket_(std::move(socket)), service_(service), address_(address_of_client(socket_)) {
    error_code ignored;
    socket_.non_blocking(true, ignored);  // for Reply::write()
  }

  Task<> run() {
    std::chrono::seconds to_begin = limits_.header_timeout;
    while (co_await serve_one(to_begin)) to_begin = limits_.idle_timeout;
    error_code error;
    socket_.shutdown(asio::socket_base::shutdown_send, error);
    // Read what the client still sends for a moment, because closing a socket with unread bytes
    // could also discard the response.
    const TimeLimit limit(socket_, kLinger);
    while (!error) {
      buffer_.consume(buffer_.size());
      co_await read_more(kRead, limit, error);
    }
  }

 private:
  /// Reads and answers a request, whose first byte has to come within `to_begin`. Returns false if
  /// the connection has to end.
  Task<bool> serve_one(std::chrono::seconds to_begin) {
    std::optional<TimeLimit> limit(std::in_place, socket_, to_begin);
    error_code error;
    while (!has_begun()) {
      co_await read_more(kRead, *limit, error);
      if (error) co_return false;
    }
    const double start = steady_seconds();
    limit->restart(limits_.header_timeout);
    Parser parser;
    parser.header_limit(static_cast<uint32_t>(limits_.header_bytes));
    // There is no limit until it is known that the body will be read. Beast 1.74 treats no limit as
    // a limit of 0.
    parser.body_limit(std::numeric_limits<uint64_t>::max());
    while (!error && !parser.is_header_done()) co_await read_some(parser, kRead, *limit, error);
    HttpRequest request = read_head(parser.get());
    request.address = address_;
    request.has_body = !error && !parser.is_done();
    Admitted admitted;
    std::optional<ApiError> refusal;
    bool has_known_end = false;  // where the next request begins
    if (!error) try {
        check_head(parser.get(), request);
        has_known_end = true;
        admitted = service_.admit(request);
        if (request.has_body && admitted.takes_body) check_length(parser, admitted.client);
      } catch (const ApiError& e) {
        refusal = e;
      }
    if (!error && !refusal && request.has_body && admitted.takes_body) {
      request.body_bytes = BodyBytes(service_.bodies, admitted.client);
      co_await read_body(parser, request, admitted.client, *limit, error, refusal);
    }
    if (error) refusal = limit->has_expired() ? ApiError::too_slow() : error_of(error, limits_);
    if (error && !refusal) co_return false;
    limit.reset();
    const bool keep_alive =
        has_known_end && !error && parser.is_done() && parser.get().keep_alive();
    Reply reply(socket_, limits_, request, keep_alive, parser.get().version() < 11);
    reply.more_headers = service_.more_headers(request);
    if (buffer_.size() == 0) buffer_.shrink_to_fit();
    request.body = std::move(parser.get().body());
    try {
      if (refusal) {
        request.drop_body();
        const HttpHeaders headers = refusal->headers();
        co_await reply.send(refusal->status, "application/json", refusal->body(request.path),
                            headers);
      } else {
        co_await service_.handler(request, reply);
      }
    } catch (...) {
      log(request, reply, start, /*client_is_gone=*/true);
      throw;
    }
    log(request, reply, start, reply.client_is_gone());
    co_return reply.keep_alive();
  }

  /// Whether bytes of a request have arrived. Empty lines, which some clients send first, do not
  /// count.
  bool has_begun() {
    for (;; buffer_.consume(2)) {
      const std::string_view text = arrived();
      if (!text.starts_with("\r\n")) return !text.empty() && text != "\r";
    }
  }

  std::string_view arrived() const {
    return {static_cast<const char*>(buffer_.data().data()), buffer_.size()};
  }

  Task<> read_more(size_t most, const TimeLimit& limit, error_code& error) {
    const size_t room = std::min(most, buffer_.max_size() - buffer_.size());
    if (room == 0) error = http::error::buffer_overflow;
    if (limit.has_expired()) error = asio::error::operation_aborted;
    if (error) co_return;
    const asio::mutable_buffer space = buffer_.prepare(room);
    buffer_.commit(
        co_await socket_.async_read_some(space, asio::redirect_error(asio::use_awaitable, error)));
  }

  /// Parses the bytes that have arrived. If they are not enough for the next part of the request,
  /// waits for more.
  Task<> read_some(Parser& parser, size_t most, const TimeLimit& limit, error_code& error) {
    for (;;) {
      if (buffer_.size() > 0) {
        const bool is_head = !parser.is_header_done();
        const size_t used = parser.put(buffer_.cdata(), error);
        if (is_head && has_folded_line(arrived().substr(0, used)))
          error = http::error::bad_obs_fold;
        buffer_.consume(used);
        if (error != http::error::need_more) co_return;
        error.clear();
      }
      co_await read_more(most, limit, error);
      if (error) co_return;
    }
  }

  Task<> read_body(Parser& parser, HttpRequest& request, const std::string& client,
                   TimeLimit& limit, error_code& error, std::optional<ApiError>& refusal) {
    parser.body_limit(limits_.body_bytes);
    // Refuse a line feed in a quoted text: a proxy that ends a line there would find a chunk in it.
    auto check_extensions = [](uint64_t, boost::string_view extensions, error_code& found) {
      if (extensions.find('\n') != extensions.npos) found = http::error::bad_chunk_extension;
    };
    parser.on_chunk_header(check_extensions);
    // RFC 9110, 10.1.1: a client of HTTP/1.0 does not know this answer.
    if (buffer_.size() == 0 && parser.get().version() >= 11 &&
        equal_in_any_case(request.header("Expect"), "100-continue"))
      co_await asio::async_write(socket_,
                                 asio::buffer(std::string_view("HTTP/1.1 100 Continue\r\n\r\n")),
                                 asio::redirect_error(asio::use_awaitable, error));
    limit.restart(limits_.body_timeout);
    size_t last = 0;  // bytes of the body when the time limit began
    while (!error && !refusal && !parser.is_done()) {
      const uint64_t rest = parser.content_length_remaining().value_or(0);
      co_await read_some(parser, std::clamp<uint64_t>(rest, kRead, kLargeRead), limit, error);
      const size_t size = parser.get().body().size();
      request.body_bytes.set(size);
      if (!has_room_for(client, 0)) refusal = bodies_too_large();
      if (size - last < limits_.least_body_bytes) continue;
      last = size;
      limit.restart(limits_.body_timeout);
    }
  }

  /// Throws ApiError if a body of the announced length will not be read.
  void check_length(const Parser& parser, const std::string& client) const {
    const uint64_t length = parser.content_length().value_or(0);
    if (length > limits_.body_bytes) throw ApiError::too_large(limits_.body_bytes);
    if (!has_room_for(client, length)) throw bodies_too_large();
  }

  bool has_room_for(const std::string& client, size_t more) const {
    return service_.bodies.has_room(client, more, limits_.client_body_bytes,
                                    limits_.all_body_bytes);
  }
  ApiError bodies_too_large() const {
    return ApiError::bodies_too_large(limits_.client_body_bytes, limits_.all_body_bytes);
  }

  void log(const HttpRequest& request, const Reply& reply, double start, bool client_is_gone) {
    const AccessLog* const access_log = service_.access_log;
    if (access_log != nullptr) access_log->write(request, reply, start, client_is_gone);
  }

  static constexpr size_t kRead = 4096, kLargeRead = size_t{64} << 10;
  static constexpr std::chrono::seconds kLinger{2};
  Socket socket_;
  HttpService& service_;
  const HttpLimits& limits_ = service_.limits;
  const std::string address_;
  beast::flat_buffer buffer_{limits_.header_bytes + kRead};
};

}  // namespace

Task<> serve_connection(Socket socket, HttpService& service) {
  Connection connection(std::move(socket), service);
  try {
    co_await connection.run();
  } catch (const boost::system::system_error&) {  // the client is gone or too slow
  }
}

}  // namespace nanovllm::server
