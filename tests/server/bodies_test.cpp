// Bodies: which are read, how many bytes they may have together, and how slowly they may come.
#include <boost/asio/read.hpp>

#include "nanovllm/server/http/api_error.h"
#include "tests/server/connections.h"

namespace nanovllm::server {
namespace {

constexpr size_t kMiB = size_t{1} << 20;

/// Whether a client gets room for one more byte in a budget of 512 MiB, 128 MiB for each client.
bool has_room(const BodyBudget& budget, const std::string& client, size_t more = 1) {
  return budget.has_room(client, more, 128 * kMiB, 512 * kMiB);
}

TEST(BodyBudget, AClientHasAShareAndFifteenOthersStillGetThrough) {
  BodyBudget budget;
  EXPECT_TRUE(has_room(budget, "greedy", 128 * kMiB));
  EXPECT_FALSE(has_room(budget, "greedy", 128 * kMiB + 1));
  BodyBytes greedy(budget, "greedy");
  greedy.set(128 * kMiB);
  EXPECT_FALSE(has_room(budget, "greedy"));
  std::vector<BodyBytes> others;
  for (int i = 0; i < 15; ++i) {
    const std::string name = std::to_string(i);
    ASSERT_TRUE(has_room(budget, name, 20 * kMiB)) << name;
    others.emplace_back(budget, name).set(20 * kMiB);
  }
  EXPECT_EQ(budget.total(), (128 + 15 * 20) * kMiB);
  others.clear();
  greedy.set(0);
  EXPECT_EQ(budget.total(), 0);
}

TEST(BodyBudget, SeveralClientsThatTakeWhatTheyCanLeaveSomethingForTheNext) {
  BodyBudget budget;
  std::vector<BodyBytes> greedy;
  for (int i = 0; i < 8; ++i) {
    BodyBytes& bytes = greedy.emplace_back(budget, std::to_string(i));
    for (size_t size = kMiB / 2; has_room(budget, std::to_string(i)); size += kMiB / 2)
      bytes.set(size);
  }
  EXPECT_LT(budget.total(), 512 * kMiB);
  EXPECT_TRUE(has_room(budget, "next", kMiB));
}

TEST(BodyBudget, WhatIsMovedCountsOnce) {
  BodyBudget budget;
  BodyBytes first(budget, "a");
  first.set(3);
  {
    const BodyBytes second = std::move(first);
    EXPECT_EQ(budget.total(), 3);
  }
  EXPECT_EQ(budget.total(), 0);
}

TEST_F(Connections, AllBodiesTogetherAreBounded) {
  limits.all_body_bytes = 24000;  // of which one client has half
  limits.body_timeout = std::chrono::seconds(60);
  handler = [&](HttpRequest& request, HttpReply& reply) -> Task<> {
    if (request.path == "/drop") request.drop_body();
    co_await reply.send(200, "text/plain", std::to_string(service.bodies.total()), HttpHeaders());
  };
  const std::string close(kClose), body(7000, 'a'), length = close + "Content-Length: 7000\r\n";
  EXPECT_THAT(answer(get("POST /", length) + body), EndsWith("\n7000"));
  EXPECT_THAT(answer(get("POST /drop", length) + body), EndsWith("\n0"));
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
  EXPECT_THAT(answer(chunks + "0\r\n\r\n"), EndsWith("\n11095"));
  EXPECT_THAT(answer(chunks + chunk), StartsWith("HTTP/1.1 503 "));
  send(first, "a");
  EXPECT_THAT(rest(first), EndsWith("\n7000"));
  EXPECT_THAT(answer(get("POST /", length) + body), EndsWith("\n7000"));
}

// Each client is told by a header here, as it is by its address and its key in the server.
TEST_F(Connections, AClientWithManyBodiesLeavesRoomForOthers) {
  limits.body_bytes = limits.client_body_bytes = 10000;
  limits.all_body_bytes = 40000;
  limits.body_timeout = std::chrono::seconds(60);
  service.admit = [](const HttpRequest& request) {
    return Admitted{.client = std::string(request.header("X-Client"))};
  };
  handler = [&](HttpRequest& request, HttpReply& reply) -> Task<> {
    if (request.method == "POST") request.drop_body();
    co_await reply.send(200, "text/plain", std::to_string(service.bodies.total()), HttpHeaders());
  };
  const auto post = [](const std::string& client, size_t length) {
    return get("POST /", std::string(kClose) + "X-Client: " + client +
                             "\r\nContent-Length: " + std::to_string(length) + "\r\n");
  };
  std::vector<tcp::socket> unfinished;
  for (int i = 0; i < 16; ++i) {  // what they announce and do not send takes nothing from others
    unfinished.push_back(connect());
    send(unfinished.back(), post("slow", 10000));
  }
  unfinished.push_back(connect());
  send(unfinished.back(), post("greedy", 10000) + std::string(9999, 'a'));
  while (!answer(get("GET /")).ends_with("\n9999")) continue;
  EXPECT_THAT(answer(post("greedy", 10000)), StartsWith("HTTP/1.1 503 "));
  for (int i = 0; i < 15; ++i)
    EXPECT_THAT(answer(post("other" + std::to_string(i), 1500) + std::string(1500, 'a')),
                StartsWith("HTTP/1.1 200 "));
  send(unfinished.back(), "a");
  EXPECT_THAT(rest(unfinished.back()), StartsWith("HTTP/1.1 200 "));
}

TEST_F(Connections, ABodyThatTheRouteDoesNotTakeIsNotRead) {
  service.admit = [](const HttpRequest&) { return Admitted{.takes_body = false}; };
  for (const char* method : {"GET", "HEAD", "OPTIONS"})
    for (const char* headers :
         {"Content-Length: 9000\r\n", "Content-Length: 99999999999\r\n",
          "Transfer-Encoding: chunked\r\n", "Content-Length: 9000\r\nExpect: 100-continue\r\n"}) {
      // The body need not even be sent. What follows is a part of it, and not the next request.
      const std::string text =
          answer(get(std::string(method) + " /", "Host: x\r\n" + std::string(headers)) +
                 get("GET /smuggled"));
      EXPECT_THAT(text, StartsWith("HTTP/1.1 200 ")) << headers;
      EXPECT_THAT(text, HasSubstr("\r\nConnection: close\r\n"));
      EXPECT_THAT(text, Not(HasSubstr("smuggled")));
    }
  EXPECT_THAT(answer(get("GET /1", "Host: x\r\nContent-Length: 0\r\n") + get("GET /2")),
              EndsWith("GET /2 "));
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
  EXPECT_THAT(rest(socket), EndsWith("POST / ab"));
}

TEST_F(Connections, AnOldClientIsNotAskedToGoOn) {
  EXPECT_THAT(answer("POST / HTTP/1.0\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\nab"),
              StartsWith("HTTP/1.1 200 "));
  tcp::socket socket = connect();
  send(socket, "POST / HTTP/1.0\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n");
  EXPECT_THAT(rest(socket), StartsWith("HTTP/1.1 408 "));  // which is all that it gets
}

TEST_F(Connections, ABodyOfARefusedRequestIsNotRead) {
  service.admit = [](const HttpRequest& request) {
    if (request.path == "/secret") throw ApiError::wrong_key();
    if (request.method == "PUT") throw ApiError::wrong_method("PUT", request.path, "GET, POST");
    return Admitted();
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
  // A body that is too large for anybody is refused for the first reason.
  EXPECT_THAT(answer(get("POST /secret", "Host: x\r\nContent-Length: 10001\r\n")),
              StartsWith("HTTP/1.1 401 "));
  // Without a body the connection stays.
  const std::string both = answer(get("GET /secret", "Host: x\r\n") + get("GET /"));
  EXPECT_THAT(both, StartsWith("HTTP/1.1 401 "));
  EXPECT_THAT(both, EndsWith("GET / "));
  EXPECT_THAT(answer(get("POST /", "Host: x\r\nOrigin: a\r\nContent-Length: 10001\r\n")),
              HasSubstr("\r\nX-Asked: a\r\n"));
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

// Each piece comes within the time limit, and all of them together take three times as long.
TEST_F(Connections, ASlowBodyMayTakeLong) {
  limits.least_body_bytes = 500;
  const std::string piece(500, 'a'), close(kClose);
  for (const bool in_chunks : {false, true}) {
    tcp::socket socket = connect();
    send(socket, get("POST /", close + (in_chunks ? "Transfer-Encoding: chunked\r\n"
                                                  : "Content-Length: 6000\r\n")));
    for (int i = 0; i < 12; ++i) {
      std::this_thread::sleep_for(limits.body_timeout / 4.0);
      send(socket, in_chunks ? "1f4\r\n" + piece + "\r\n" : piece);
    }
    if (in_chunks) send(socket, "0\r\n\r\n");
    EXPECT_THAT(rest(socket), EndsWith(std::string(6000, 'a')));
  }
}

TEST_F(Connections, ABodyByteByByteIsTooSlow) {
  limits.least_body_bytes = 500;
  tcp::socket socket = connect();
  send(socket, get("POST /", "Host: x\r\nContent-Length: 600\r\n"));
  std::atomic<bool> ended = false;
  std::thread sender([&] {
    for (; !ended; std::this_thread::sleep_for(std::chrono::milliseconds(20))) send(socket, "a");
  });
  EXPECT_THAT(rest(socket), StartsWith("HTTP/1.1 408 "));
  ended = true;
  sender.join();
}

}  // namespace
}  // namespace nanovllm::server
