// Clients that take their answers slowly.
#include <algorithm>
#include <boost/asio/read.hpp>
#include <future>

#include "tests/server/connections.h"

namespace nanovllm::server {
namespace {

class SlowReaders : public Connections {
 protected:
  SlowReaders() {
    limits.write_timeout = std::chrono::seconds(1);
    handler = [&](const HttpRequest& request, HttpReply& reply) -> Task<> {
      try {
        co_await reply.send(200, "text/plain", std::string(kBytes, '~'), HttpHeaders());
        if (request.path == "/watched") ended.set_value(true);
      } catch (const boost::system::system_error&) {
        if (request.path == "/watched") ended.set_value(false);
        throw;
      }
    };
  }
  /// A client whose kernel keeps little of what it has not read.
  tcp::socket connect_small() {
    tcp::socket socket(client_io);
    socket.open(tcp::v4());
    socket.set_option(asio::socket_base::receive_buffer_size(1 << 16));
    socket.connect(acceptor->local_endpoint());
    return socket;
  }
  static constexpr size_t kBytes = size_t{16} << 20;
  std::promise<bool> ended;  ///< whether the answer to /watched was written completely
};

// For three time limits it takes so little that the kernel asks for no more, and then everything.
TEST_F(SlowReaders, GetTheWholeAnswer) {
  tcp::socket socket = connect_small();
  send(socket, get("GET /watched"));
  std::string text(kBytes + 1000, 0);
  size_t size = 0;
  for (int i = 0; i < 30; ++i) {
    size += asio::read(socket, asio::buffer(&text[size], 40000));
    std::this_thread::sleep_for(limits.write_timeout / 10.0);
  }
  error_code end;
  asio::read(socket, asio::buffer(&text[size], text.size() - size), end);
  EXPECT_TRUE(ended.get_future().get());
  EXPECT_EQ(std::ranges::count(text, '~'), std::ssize(text) - 1000);
}

TEST_F(SlowReaders, WhoTakesNothingIsDisconnected) {
  tcp::socket socket = connect_small();
  send(socket, get("GET /watched"));
  EXPECT_FALSE(ended.get_future().get());
  std::string text(kBytes, 0);
  error_code end;
  EXPECT_LT(asio::read(socket, asio::buffer(text), end), kBytes);
}

TEST_F(Connections, AClientThatDoesNotReadGetsAllLaterAndStopsNobody) {
  const std::string large(size_t{16} << 20, '~');  // which no header has
  handler = [&](const HttpRequest& request, HttpReply& reply) -> Task<> {
    co_await reply.begin_events();
    for (int i = 0; i < (request.path == "/large" ? 2 : 0); ++i) {
      reply.add_event(large);
      co_await reply.flush();
    }
    co_await reply.end_events();
  };
  tcp::socket slow = connect();
  send(slow, get("GET /large", "Host: x\r\nConnection: close\r\n"));
  EXPECT_THAT(answer(get("GET /")), EndsWith("\r\n\r\n0\r\n\r\n"));
  std::string text(3 * large.size(), '\0');
  error_code end;
  text.resize(asio::read(slow, asio::buffer(text), end));
  EXPECT_EQ(std::ranges::count(text, '~'), 2 * std::ssize(large));
  EXPECT_EQ(text.substr(text.size() - 7), "\r\n0\r\n\r\n");
}

}  // namespace
}  // namespace nanovllm::server
