// The protocol, over real sockets of the loopback interface and with a handler that needs no
// engine.
#include "nanovllm/server/http/connection.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <boost/asio/read.hpp>
#include <future>
#include <thread>

#include "nanovllm/server/http/api_error.h"

namespace nanovllm::server {
namespace {

using asio::ip::tcp;
using ::testing::HasSubstr;
using ::testing::StartsWith;

/// Answers with the method and the body; /events answers with three events.
Task<> echo(const HttpRequest& request, HttpReply& reply) {
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

std::string get(std::string_view line, std::string_view headers = kClose) {
  return std::string(line) + " HTTP/1.1\r\n" + std::string(headers) + "\r\n";
}

TEST(UrlDecoded, ReplacesOnlyEscapes) {
  EXPECT_EQ(url_decoded("a%2Fb%20c%c3%A9"), "a/b c\u00e9");
  EXPECT_EQ(url_decoded("%"), "%");
  EXPECT_EQ(url_decoded("%4"), "%4");
  EXPECT_EQ(url_decoded("%4g%-1%+1%%41"), "%4g%-1%+1%A");
}

TEST_F(Connections, AnswersAndCloses) {
  const std::string text = answer(get("GET /a?b=c"));
  EXPECT_THAT(text, StartsWith("HTTP/1.1 200 OK\r\n"));
  EXPECT_THAT(text, HasSubstr("\r\nContent-Length: 7\r\n"));
  EXPECT_THAT(text, ::testing::EndsWith("\r\n\r\nGET /a "));
}

TEST_F(Connections, AnswersWhatProxiesAndOldClientsSend) {
  for (const char* target : {"http://host:80/a", "HTTPS://host/a?b=/c"})
    EXPECT_THAT(answer(get(std::string("GET ") + target)), ::testing::EndsWith("\nGET /a "));
  for (const char* target : {"http://host", "http://host?a=/b"})
    EXPECT_THAT(answer(get(std::string("GET ") + target)), ::testing::EndsWith("\nGET / "));
  const std::string twice = "\r\n" + get("GET /1", "Host: x\r\n") + "\r\n\r\n" + get("GET /2");
  EXPECT_THAT(answer(twice), ::testing::EndsWith("\nGET /2 "));
  tcp::socket slow = connect();
  for (const char c : "\r\n" + get("GET /")) send(slow, {&c, 1});
  EXPECT_THAT(rest(slow), ::testing::EndsWith("\nGET / "));
  EXPECT_THAT(answer("GET / HTTP/1.0\r\n\r\n"), ::testing::EndsWith("\nGET / "));
}

TEST_F(Connections, ResponsesHaveADate) {
  EXPECT_THAT(answer(get("GET /")),
              ::testing::ContainsRegex("\r\nDate: [A-Z][a-z][a-z], [0-9][0-9] "
                                       "[A-Z][a-z][a-z] 20[0-9][0-9] "
                                       "[0-9:]* GMT\r\n"));
}

TEST_F(Connections, NeedsOneHostAndKnowsOnlyChunks) {
  for (const char* headers : {"", "Host: x\r\nHost: y\r\n"})
    EXPECT_THAT(answer(get("GET /", headers)), StartsWith("HTTP/1.1 400 ")) << headers;
  for (const char* coding : {"gzip, chunked", "gzip", "gzip\r\nTransfer-Encoding: chunked"})
    EXPECT_THAT(
        answer(get("POST /", std::string("Host: x\r\nTransfer-Encoding: ") + coding + "\r\n") +
               "0\r\n\r\n"),
        StartsWith("HTTP/1.1 501 "))
        << coding;
}

TEST_F(Connections, KeepsTheClientsRequestId) {
  EXPECT_THAT(answer(get("GET /", "Host: x\r\nX-Request-Id: mine\r\nConnection: close\r\n")),
              HasSubstr("\r\nX-Request-Id: mine\r\n"));
  EXPECT_THAT(answer(get("GET /")), HasSubstr("\r\nX-Request-Id: req-"));
}

TEST_F(Connections, PipelinedRequestsAreAnsweredInOrder) {
  const std::string text =
      answer(get("GET /1", "Host: x\r\n") + get("GET /2", "Host: x\r\n") + get("GET /3"));
  const size_t one = text.find("GET /1"), two = text.find("GET /2"), three = text.find("GET /3");
  EXPECT_LT(one, two);
  EXPECT_LT(two, three);
  EXPECT_NE(three, std::string::npos);
}

TEST_F(Connections, ABodyMayComeInChunksByteByByte) {
  tcp::socket socket = connect();
  const std::string request =
      get("POST /", "Host: x\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n") +
      "3\r\nabc\r\n4\r\ndefg\r\n0\r\n\r\n";
  for (const char c : request) send(socket, {&c, 1});
  EXPECT_THAT(rest(socket), ::testing::EndsWith("POST / abcdefg"));
}

TEST_F(Connections, HeadHasNoBody) {
  const std::string text = answer(get("HEAD /"));
  EXPECT_THAT(text, HasSubstr("Content-Length: 7"));
  EXPECT_THAT(text, ::testing::EndsWith("\r\n\r\n"));
}

TEST_F(Connections, EventsAreChunks) {
  EXPECT_THAT(answer(get("GET /events")),
              ::testing::EndsWith("\r\n\r\nb\r\ndata: one\n\n\r\nb\r\ndata: two\n\n\r\n"
                                  "d\r\ndata: three\n\n\r\n0\r\n\r\n"));
}

TEST_F(Connections, AnOldClientGetsEventsUntilTheConnectionEnds) {
  EXPECT_THAT(answer("GET /events HTTP/1.0\r\n\r\n"),
              ::testing::EndsWith("\r\n\r\ndata: one\n\ndata: two\n\ndata: three\n\n"));
}

TEST_F(Connections, RefusesWhatIsTooLarge) {
  EXPECT_THAT(answer(get("POST /", "Host: x\r\nContent-Length: 10001\r\n")),
              StartsWith("HTTP/1.1 413 "));
  EXPECT_THAT(answer(get("GET /", "Host: x\r\nX: " + std::string(5000, 'a') + "\r\n")),
              StartsWith("HTTP/1.1 431 "));
  const std::string chunk = "1000\r\n" + std::string(4096, 'a') + "\r\n";
  EXPECT_THAT(
      answer(get("POST /", "Host: x\r\nTransfer-Encoding: chunked\r\n") + chunk + chunk + chunk),
      StartsWith("HTTP/1.1 413 "));
}

TEST_F(Connections, AllBodiesTogetherAreBounded) {
  limits.all_body_bytes = 12000;
  limits.body_timeout = std::chrono::seconds(60);
  handler = [&](HttpRequest& request, HttpReply& reply) -> Task<> {
    if (request.path == "/drop") request.drop_body();
    co_await reply.send(200, "text/plain", std::to_string(service.body_bytes), HttpHeaders());
  };
  const std::string close(kClose), body(7000, 'a'), length = close + "Content-Length: 7000\r\n";
  EXPECT_THAT(answer(get("POST /", length) + body), ::testing::EndsWith("\n7000"));
  EXPECT_THAT(answer(get("POST /drop", length) + body), ::testing::EndsWith("\n0"));
  tcp::socket first = connect();
  send(first, get("POST /", length) + body.substr(1));  // the last byte is missing
  while (!answer(get("GET /")).ends_with("\n6999")) continue;
  // The second body is not read: it need not even be sent.
  const std::string refused = answer(get("POST /", length + "Expect: 100-continue\r\n"));
  EXPECT_THAT(refused, StartsWith("HTTP/1.1 503 "));
  EXPECT_THAT(refused, HasSubstr("\r\nRetry-After: 1\r\n"));
  const std::string chunk = "800\r\n" + body.substr(0, 0x800) + "\r\n";  // 2,048 bytes
  const std::string chunks =
      get("POST /", close + "Transfer-Encoding: chunked\r\n") + chunk + chunk;
  EXPECT_THAT(answer(chunks + "0\r\n\r\n"), ::testing::EndsWith("\n11095"));
  EXPECT_THAT(answer(chunks + chunk), StartsWith("HTTP/1.1 503 "));
  send(first, "a");
  EXPECT_THAT(rest(first), ::testing::EndsWith("\n7000"));
  EXPECT_THAT(answer(get("POST /", length) + body), ::testing::EndsWith("\n7000"));
}

TEST_F(Connections, RefusesWhatTwoServersCouldReadDifferently) {
  for (const char* headers :
       {"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n",
        "Transfer-Encoding: chunked\r\nContent-Length: 5\r\n",
        "Content-Length: 5\r\nContent-Length: 6\r\n", "Content-Length: -1\r\n",
        "Content-Length: 5x\r\n", "Content-Length : 5\r\n", "A\r\n"})
    EXPECT_THAT(answer(get("POST /", std::string("Host: x\r\n") + headers) + "0\r\n\r\n"),
                StartsWith("HTTP/1.1 400 "))
        << headers;
  for (const char* line : {" ", "GET", "GET /", "G\x01T / HTTP/1.1", "GET / HTTP/3.0"})
    EXPECT_THAT(answer(std::string(line) + "\r\n\r\n"), StartsWith("HTTP/1.1 400 ")) << line;
}

TEST_F(Connections, EndsSlowClients) {
  tcp::socket idle = connect(), slow = connect(), stuck = connect();
  send(slow, "GET / HTTP/1.1\r\nHost:");
  send(stuck, get("POST /", "Host: x\r\nContent-Length: 10\r\n") + "abc");
  EXPECT_EQ(rest(idle), "");
  for (tcp::socket* socket : {&slow, &stuck}) {
    const std::string text = rest(*socket);
    EXPECT_THAT(text, StartsWith("HTTP/1.1 408 Request Timeout\r\n"));
    EXPECT_THAT(text, HasSubstr("\r\nConnection: close\r\n"));
    EXPECT_THAT(text, HasSubstr("\"code\":\"request_timeout\""));
  }
  EXPECT_THAT(answer(get("GET /")), StartsWith("HTTP/1.1 200 "));
}

TEST_F(Connections, AnAnswerMayTakeLongerThanARequest) {
  handler = [&](const HttpRequest&, HttpReply& reply) -> Task<> {
    asio::steady_timer pause(io, limits.body_timeout + std::chrono::milliseconds(100));
    co_await pause.async_wait(asio::use_awaitable);
    co_await reply.send(200, "text/plain", "late", HttpHeaders());
  };
  EXPECT_THAT(answer(get("GET /")), ::testing::EndsWith("late"));
}

// The answer would be lost if the connection was closed while the client still sends.
TEST_F(Connections, ARefusalArrivesAlthoughTheClientStillSends) {
  tcp::socket socket = connect();
  send(socket, get("POST /", "Host: x\r\nContent-Length: 1000000\r\n"));
  for (int i = 0; i < 100; ++i) send(socket, std::string(10000, 'a'));
  EXPECT_THAT(rest(socket), StartsWith("HTTP/1.1 413 "));
}

TEST_F(Connections, AskToGoOnAreAnswered) {
  tcp::socket socket = connect();
  send(socket,
       get("POST /",
           "Host: x\r\nExpect: 100-continue\r\nContent-Length: 2\r\nConnection: close\r\n"));
  std::string first(25, '\0');
  asio::read(socket, asio::buffer(first));
  EXPECT_EQ(first, "HTTP/1.1 100 Continue\r\n\r\n");
  send(socket, "ab");
  EXPECT_THAT(rest(socket), ::testing::EndsWith("POST / ab"));
}

TEST_F(Connections, ABodyOfARefusedRequestIsNotRead) {
  service.check = [](const HttpRequest& request) {
    if (request.path == "/secret") throw ApiError::wrong_key();
    if (request.method == "PUT") throw ApiError::wrong_method("PUT", request.path, "GET, POST");
  };
  service.more_headers = [](const HttpRequest& request) {
    return HttpHeaders{{"X-Asked", std::string(request.header("Origin"))}};
  };
  // The bodies need not even be sent.
  for (const char* headers : {"Content-Length: 9000\r\n", "Transfer-Encoding: chunked\r\n",
                              "Content-Length: 9000\r\nExpect: 100-continue\r\n"}) {
    const std::string all = std::string("Host: x\r\nOrigin: a\r\n") + headers;
    const std::string text = answer(get("POST /secret", all));
    EXPECT_THAT(text, StartsWith("HTTP/1.1 401 ")) << headers;
    EXPECT_THAT(text, HasSubstr("\r\nConnection: close\r\n"));
    EXPECT_THAT(text, HasSubstr("\r\nX-Asked: a\r\n"));
    EXPECT_THAT(answer(get("PUT /", all)), HasSubstr("\r\nAllow: GET, POST\r\n"));
  }
  // Without a body the handler says what is wrong, and the connection stays.
  EXPECT_THAT(answer(get("GET /secret", "Host: x\r\n") + get("GET /")),
              ::testing::EndsWith("GET / "));
  EXPECT_THAT(answer(get("POST /", "Host: x\r\nOrigin: a\r\nContent-Length: 10001\r\n")),
              HasSubstr("\r\nX-Asked: a\r\n"));
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
  EXPECT_THAT(answer(get("GET /")), ::testing::EndsWith("\r\n\r\n0\r\n\r\n"));
  std::string text(3 * large.size(), '\0');
  error_code end;
  text.resize(asio::read(slow, asio::buffer(text), end));
  EXPECT_EQ(std::ranges::count(text, '~'), 2 * std::ssize(large));
  EXPECT_EQ(text.substr(text.size() - 7), "\r\n0\r\n\r\n");
}

TEST_F(Connections, AClientThatGoesIsNoticedAlsoAfterItHasSentMore) {
  std::promise<void> begun, noticed;
  handler = [&](const HttpRequest&, HttpReply& reply) -> Task<> {
    asio::steady_timer forever(io, std::chrono::seconds(60));
    const auto end = [&] { forever.cancel(); };
    reply.on_gone(end);
    begun.set_value();
    error_code cancelled;
    co_await forever.async_wait(asio::redirect_error(asio::use_awaitable, cancelled));
    noticed.set_value();
  };
  for (const std::string& more : {std::string(), std::string("\r\n"), get("GET /next")}) {
    begun = {};
    noticed = {};
    {
      tcp::socket socket = connect();
      send(socket, get("GET /"));
      begun.get_future().wait();
      send(socket, more);
    }
    EXPECT_EQ(noticed.get_future().wait_for(std::chrono::seconds(10)), std::future_status::ready)
        << more;
  }
}

TEST_F(Connections, AfterAnEmptyFunctionNobodyIsToldThatTheClientIsGone) {
  std::promise<void> begun, ended;
  std::atomic<bool> told = false;
  handler = [&](const HttpRequest&, HttpReply& reply) -> Task<> {
    const auto tell = [&] { told = true; };
    reply.on_gone(tell);
    reply.on_gone(nullptr);
    begun.set_value();
    try {
      co_await reply.begin_events();
      for (;;) {  // until the client is gone; it reads nothing, so the writes have to wait
        reply.add_event(std::string(1 << 16, '~'));
        co_await reply.flush();
      }
    } catch (const boost::system::system_error&) {
      ended.set_value();
    }
  };
  {
    tcp::socket socket = connect();
    send(socket, get("GET /"));
    begun.get_future().wait();
  }
  ended.get_future().wait();
  EXPECT_FALSE(told);
}

}  // namespace
}  // namespace nanovllm::server
