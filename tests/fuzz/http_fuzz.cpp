// The bytes of a connection. A line of three dashes divides them into pieces that arrive one after
// the other.

#include <sys/socket.h>
#include <unistd.h>

#include <array>

#include "nanovllm/base/check.h"
#include "nanovllm/server/http/connection.h"
#include "tests/fuzz/fuzz.h"

namespace nanovllm::server {

namespace {

/// Answers with what it was asked, as events if the path says so.
Task<> echo(const HttpRequest& request, HttpReply& reply) {
  check(!request.id.empty() && request.id.size() <= 128, "an id of {} bytes", request.id.size());
  if (!request.path.starts_with("/events")) {
    co_await reply.send(200, "text/plain", request.method + request.path + request.body,
                        HttpHeaders());
    co_return;
  }
  const auto nothing = [] {};
  reply.on_gone(nothing);
  co_await reply.begin_events();
  reply.add_event("one");
  co_await reply.flush();
  co_await reply.end_events();
}

/// Reads what has arrived.
void read_all(int fd, std::string& text) {
  std::array<char, 4096> buffer;
  for (ssize_t n; (n = ::recv(fd, buffer.data(), buffer.size(), MSG_DONTWAIT)) > 0;)
    text.append(buffer.data(), static_cast<size_t>(n));
}

}  // namespace

}  // namespace nanovllm::server

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace nanovllm;
  using namespace nanovllm::server;
  HttpService service{.handler = echo};
  service.limits.header_bytes = 2048;
  service.limits.body_bytes = 4096;
  service.limits.all_body_bytes = 3000;
  asio::io_context io{1};
  std::array<int, 2> ends;
  check(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) == 0, "socketpair");
  asio::generic::stream_protocol::socket socket(
      io, asio::generic::stream_protocol(AF_UNIX, SOCK_STREAM), ends[0]);
  asio::co_spawn(io, serve_connection(std::move(socket), service), [](std::exception_ptr failure) {
    if (failure) std::rethrow_exception(failure);
  });
  std::string_view input = text_of(data, size);
  std::string answers;
  while (!input.empty()) {
    const std::string_view piece = take_part(input);
    if (::send(ends[1], piece.data(), piece.size(), MSG_NOSIGNAL | MSG_DONTWAIT) < 0) break;
    io.poll();
    read_all(ends[1], answers);
  }
  ::shutdown(ends[1], SHUT_WR);
  io.run();  // ends, because a connection whose client has sent everything waits for nothing
  read_all(ends[1], answers);
  ::close(ends[1]);
  check(service.bodies.total() == 0, "{} bytes are still counted", service.bodies.total());
  check(answers.empty() || answers.starts_with("HTTP/1.1 "), "an answer without a status");
  return 0;
}
