// The protocol.
#include "tests/server/connections.h"

#include <algorithm>
#include <atomic>
#include <boost/asio/read.hpp>
#include <future>

#include "nanovllm/server/http/api_error.h"

namespace nanovllm::server {
namespace {

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
  EXPECT_THAT(text, EndsWith("\r\n\r\nGET /a "));
}

TEST_F(Connections, AnswersWhatProxiesAndOldClientsSend) {
  for (const char* target : {"http://host:80/a", "HTTPS://host/a?b=/c"})
    EXPECT_THAT(answer(get(std::string("GET ") + target)), EndsWith("\nGET /a "));
  for (const char* target : {"http://host", "http://host?a=/b"})
    EXPECT_THAT(answer(get(std::string("GET ") + target)), EndsWith("\nGET / "));
  const std::string twice = "\r\n" + get("GET /1", "Host: x\r\n") + "\r\n\r\n" + get("GET /2");
  EXPECT_THAT(answer(twice), EndsWith("\nGET /2 "));
  tcp::socket slow = connect();
  for (const char c : "\r\n" + get("GET /")) send(slow, {&c, 1});
  EXPECT_THAT(rest(slow), EndsWith("\nGET / "));
  EXPECT_THAT(answer("GET / HTTP/1.0\r\n\r\n"), EndsWith("\nGET / "));
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
  for (const char* coding : {"gzip, chunked", "gzip", "gzip\r\nTransfer-Encoding: chunked",
                             "chunked, chunked", "chunked;a=b", "identity"})
    EXPECT_THAT(
        answer(get("POST /", std::string("Host: x\r\nTransfer-Encoding: ") + coding + "\r\n") +
               "0\r\n\r\n"),
        StartsWith("HTTP/1.1 501 "))
        << coding;
}

TEST_F(Connections, KnowsWhatTheClientCallsTheServer) {
  handler = [](const HttpRequest& request, HttpReply& reply) -> Task<> {
    const auto& authority = request.authority;
    const std::string text = authority ? authority->name + " " + authority->port : "none";
    co_await reply.send(200, "text/plain", text, HttpHeaders());
  };
  const std::string close = "Connection: close\r\n";
  EXPECT_THAT(answer(get("GET /", close + "Host: A.b.:80\r\n")), EndsWith("\na.b 80"));
  EXPECT_THAT(answer(get("GET /", close + "Host: [::1]\r\n")), EndsWith("\n::1 "));
  // A whole URL replaces the header.
  EXPECT_THAT(answer(get("GET http://c:1/", close + "Host: a.b\r\n")), EndsWith("\nc 1"));
  EXPECT_THAT(answer(get("GET https://c?/", close + "Host: a.b\r\n")), EndsWith("\nc "));
  EXPECT_THAT(answer("GET / HTTP/1.0\r\n\r\n"), EndsWith("\nnone"));
  EXPECT_THAT(answer("GET / HTTP/1.0\r\nHost: a\r\n\r\n"), EndsWith("\na "));
  for (const char* host : {"", "a@b", "a:b", "a:1:2", "a b", "a/b", "[::1", "::1", "[::1]a",
                           "a,b@c", ":80", "a\\b", "a#b", "[a]"})
    EXPECT_THAT(answer(get("GET /", "Host: " + std::string(host) + "\r\n")),
                StartsWith("HTTP/1.1 400 "))
        << host;
  for (const char* target : {"http://", "http:///a", "http://a@b/", "http://a\\@b/"})
    EXPECT_THAT(answer(get("GET " + std::string(target), "Host: a\r\n")),
                StartsWith("HTTP/1.1 400 "))
        << target;
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
  EXPECT_THAT(rest(socket), EndsWith("POST / abcdefg"));
}

TEST_F(Connections, HeadHasNoBody) {
  const std::string text = answer(get("HEAD /"));
  EXPECT_THAT(text, HasSubstr("Content-Length: 7"));
  EXPECT_THAT(text, EndsWith("\r\n\r\n"));
}

TEST_F(Connections, EventsAreChunks) {
  EXPECT_THAT(answer(get("GET /events")),
              EndsWith("\r\n\r\nb\r\ndata: one\n\n\r\nb\r\ndata: two\n\n\r\n"
                       "d\r\ndata: three\n\n\r\n0\r\n\r\n"));
}

TEST_F(Connections, AnOldClientGetsEventsUntilTheConnectionEnds) {
  EXPECT_THAT(answer("GET /events HTTP/1.0\r\n\r\n"),
              EndsWith("\r\n\r\ndata: one\n\ndata: two\n\ndata: three\n\n"));
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

TEST_F(Connections, RefusesWhatTwoServersCouldReadDifferently) {
  for (const char* headers :
       {"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n",
        "Transfer-Encoding: chunked\r\nContent-Length: 5\r\n",
        "Content-Length: 5\r\nContent-Length: 6\r\n", "Content-Length: -1\r\n",
        "Content-Length: 5x\r\n", "Content-Length : 5\r\n", "A\r\n", "Content-Length: +5\r\n",
        "Content-Length: 5\r\nContent-Length: 5\r\n", "Content-Length: 5, 5\r\n",
        "Content-Length: 5\nX: y\r\n", "X: y\n\r\n", "X: y\r z\r\n", "X: y\r\n z\r\n",
        "X: y\r\n\tz\r\n", "X:\r\n Transfer-Encoding: chunked\r\n", " X: y\r\n",
        "Transfer-Encoding : chunked\r\n", "\tTransfer-Encoding: chunked\r\n"}) {
    const std::string text = answer(get("POST /", std::string("Host: x\r\n") + headers) +
                                    "0\r\n\r\n" + get("GET /smuggled"));
    EXPECT_THAT(text, StartsWith("HTTP/1.1 400 ")) << headers;
    EXPECT_THAT(text, HasSubstr("\r\nConnection: close\r\n"));
    EXPECT_THAT(text, Not(HasSubstr("smuggled")));
  }
  const std::string old = "POST / HTTP/1.0\r\nConnection: keep-alive\r\n";
  for (const char* headers : {"Transfer-Encoding: chunked\r\n", "Transfer-Encoding: gzip\r\n",
                              "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n"}) {
    const std::string text = answer(old + headers + "\r\n0\r\n\r\n" + get("GET /smuggled"));
    EXPECT_THAT(text, StartsWith("HTTP/1.1 400 ")) << headers;
    EXPECT_THAT(text, Not(HasSubstr("smuggled")));
  }
  const std::string chunked = "Host: x\r\nTransfer-Encoding: chunked\r\n";
  for (const char* chunk :
       {"3\nabc\r\n0\r\n\r\n", "3\r\nabcd\r\n0\r\n\r\n", "3 \r\nabc\r\n0\r\n\r\n",
        "0x3\r\nabc\r\n0\r\n\r\n", "-3\r\n", "3;a=\"\nb\"\r\nabc\r\n0\r\n\r\n", "3;\na\r\nabc",
        "10000000000000003\r\nabc\r\n0\r\n\r\n"})
    EXPECT_THAT(answer(get("POST /", chunked) + chunk), StartsWith("HTTP/1.1 4")) << chunk;
  for (const char* line : {" ", "GET", "GET /", "G\x01T / HTTP/1.1", "GET / HTTP/3.0"})
    EXPECT_THAT(answer(std::string(line) + "\r\n\r\n"), StartsWith("HTTP/1.1 400 ")) << line;
}

TEST_F(Connections, AnAnswerMayTakeLongerThanARequest) {
  handler = [&](const HttpRequest&, HttpReply& reply) -> Task<> {
    asio::steady_timer pause(io, limits.body_timeout + std::chrono::milliseconds(100));
    co_await pause.async_wait(asio::use_awaitable);
    co_await reply.send(200, "text/plain", "late", HttpHeaders());
  };
  EXPECT_THAT(answer(get("GET /")), EndsWith("late"));
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
