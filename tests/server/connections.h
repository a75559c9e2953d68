#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <string_view>
#include <thread>

#include "nanovllm/server/http/connection.h"

namespace nanovllm::server {

using asio::ip::tcp;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

/// Answers with the method and the body; /events answers with three events.
inline Task<> echo(const HttpRequest& request, HttpReply& reply) {
  if (request.path == "/events") {
    co_await reply.begin_events();
    for (const char* event : {"one", "two", "three"}) {
      reply.add_event(event);
      co_await reply.flush();
    }
    co_await reply.end_events();
    co_return;
  }
  const std::string text = request.method + " " + request.path + " " + request.body;
  co_await reply.send(200, "text/plain", text, HttpHeaders());
}

/// A server over sockets of the loopback interface, with a handler that needs no engine.
class Connections : public ::testing::Test {
 protected:
  Connections() {
    limits.header_bytes = 4096;
    limits.body_bytes = 10000;
    limits.header_timeout = limits.body_timeout = limits.idle_timeout = std::chrono::seconds(1);
    acceptor =
        std::make_unique<tcp::acceptor>(io, tcp::endpoint(asio::ip::address_v4::loopback(), 0));
    asio::co_spawn(io, accept(), asio::detached);
    thread = std::thread([this] { io.run(); });
  }
  ~Connections() override {
    io.stop();
    thread.join();
  }
  Task<> accept() {
    for (;;) {
      tcp::socket socket = co_await acceptor->async_accept(asio::use_awaitable);
      asio::co_spawn(io, serve_connection(std::move(socket), service), asio::detached);
    }
  }
  tcp::socket connect() {
    tcp::socket socket(client_io);
    socket.connect(acceptor->local_endpoint());
    return socket;
  }
  static void send(tcp::socket& socket, std::string_view text) {
    error_code ignored;  // the server may have closed the connection
    asio::write(socket, asio::buffer(text), ignored);
  }
  /// All that the server sends until it closes the connection.
  static std::string rest(tcp::socket& socket) {
    std::string text(1 << 16, '\0');
    size_t size = 0;
    error_code error;
    while (!error) size += socket.read_some(asio::buffer(&text[size], text.size() - size), error);
    text.resize(size);
    return text;
  }
  std::string answer(std::string_view request) {
    tcp::socket socket = connect();
    send(socket, request);
    return rest(socket);
  }

  HttpService service{.handler = echo};
  HttpLimits& limits = service.limits;
  HttpHandler& handler = service.handler;
  asio::io_context io, client_io;
  std::unique_ptr<tcp::acceptor> acceptor;
  std::thread thread;
};

constexpr std::string_view kClose = "Host: x\r\nConnection: close\r\n";

inline std::string get(std::string_view line, std::string_view headers = kClose) {
  return std::string(line) + " HTTP/1.1\r\n" + std::string(headers) + "\r\n";
}

}  // namespace nanovllm::server
