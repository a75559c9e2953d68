#include "nanovllm/server/http/cors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "nanovllm/server/http/http.h"

namespace nanovllm::server {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Pair;

HttpRequest from(const std::string& origin, const std::string& method = "POST") {
  HttpRequest request;
  request.method = method;
  if (!origin.empty()) request.headers.emplace_back("origin", origin);
  return request;
}

TEST(Cors, IsOffByDefault) { EXPECT_THAT(cors_headers({}, from("http://a.b")), IsEmpty()); }

TEST(Cors, KnownOriginsAreAllowed) {
  const CorsOptions options = {.origins = {"http://a.b", "http://c.d"}};
  EXPECT_THAT(cors_headers(options, from("http://c.d")),
              Contains(Pair("Access-Control-Allow-Origin", "http://c.d")));
  for (const char* other : {"", "http://e.f", "http://c.d.e", "http://c", "null"})
    EXPECT_THAT(cors_headers(options, from(other)), ElementsAre(Pair("Vary", "Origin"))) << other;
}

TEST(Cors, AStarAllowsAllAndWithCredentialsNamesTheOrigin) {
  CorsOptions options = {.origins = {"*"}};
  EXPECT_THAT(cors_headers(options, from("http://a.b")),
              Contains(Pair("Access-Control-Allow-Origin", "*")));
  options.allows_credentials = true;
  const HttpHeaders headers = cors_headers(options, from("http://a.b"));
  EXPECT_THAT(headers, Contains(Pair("Access-Control-Allow-Origin", "http://a.b")));
  EXPECT_THAT(headers, Contains(Pair("Access-Control-Allow-Credentials", "true")));
  EXPECT_THAT(headers, Contains(Pair("Vary", "Origin")));
}

TEST(Cors, PreflightsGetWhatIsAllowed) {
  HttpRequest request = from("http://a.b", "OPTIONS");
  EXPECT_FALSE(is_preflight(request));
  request.headers.emplace_back("Access-Control-Request-Method", "POST");
  request.headers.emplace_back("Access-Control-Request-Headers", "authorization");
  EXPECT_TRUE(is_preflight(request));
  EXPECT_THAT(preflight_headers({.origins = {"*"}}, request),
              ElementsAre(Pair("Access-Control-Allow-Methods", "POST"),
                          Pair("Access-Control-Allow-Headers", "authorization"),
                          Pair("Access-Control-Max-Age", "600")));
  EXPECT_THAT(preflight_headers({.origins = {"*"}, .methods = {"GET", "POST"}, .headers = {"x-a"}},
                                request),
              ElementsAre(Pair("Access-Control-Allow-Methods", "GET, POST"),
                          Pair("Access-Control-Allow-Headers", "x-a"),
                          Pair("Access-Control-Max-Age", "600")));
}

}  // namespace
}  // namespace nanovllm::server
