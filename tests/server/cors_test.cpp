#include "nanovllm/server/http/cors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "nanovllm/server/http/api_error.h"
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

/// The status for a request to "server.name:8000" from a page of this origin.
int status(const CorsOptions& options, const std::string& origin, const char* site = "") {
  HttpRequest request = from(origin);
  request.authority = parse_authority("server.name:8000");
  if (*site != 0) request.headers.emplace_back("Sec-Fetch-Site", site);
  try {
    check_origin(options, request);
  } catch (const ApiError& error) {
    EXPECT_THAT(error.body(), ::testing::HasSubstr("--allowed-origins"));
    return error.status;
  }
  return 200;
}

TEST(Origin, OfTheServerItselfThisMachineAndLocalProgramsIsAllowed) {
  for (const char* origin :
       {"http://server.name:8000", "https://server.name:8000", "http://localhost",
        "https://localhost:3000", "http://tauri.localhost", "http://127.0.0.1:8000",
        "http://[::1]:1", "app://obsidian.md", "file://", "tauri://localhost",
        "vscode-webview://1a2b", "vscode-file://vscode-app"})
    EXPECT_EQ(status({}, origin), 200) << origin;
}

TEST(Origin, OfAnotherSiteIsForeign) {
  for (const char* origin :
       {"http://evil.example", "https://evil.example", "null", "http://server.name",
        "http://server.name:8001", "http://server.name.evil:8000", "http://localhost.evil",
        "http://10.0.0.1:8000", "chrome-extension://abc", "moz-extension://abc", "appx://a",
        "http://127.0.0.1.evil", "http://", "localhost", "http://localhost@evil",
        "http://localhost http://evil", "http://server.name:8000/"})
    EXPECT_EQ(status({}, origin), 403) << origin;
  HttpRequest twice = from("http://localhost");
  twice.headers.emplace_back("Origin", "http://evil.example");
  EXPECT_THROW(check_origin({}, twice), ApiError);
  HttpRequest empty;
  empty.headers.emplace_back("Origin", "");
  EXPECT_THROW(check_origin({}, empty), ApiError);
  EXPECT_NO_THROW(check_origin({}, HttpRequest()));  // no browser
}

TEST(Origin, IsAllowedByTheOption) {
  const CorsOptions options = {.origins = {"http://a.b", "null", "chrome-extension://abc"}};
  for (const char* origin : {"http://a.b", "null", "chrome-extension://abc"})
    EXPECT_EQ(status(options, origin), 200) << origin;
  EXPECT_EQ(status(options, "http://c.d"), 403);
  EXPECT_EQ(status({.origins = {"*"}}, "http://c.d"), 200);
}

TEST(Origin, IsTheServersIfTheBrowserSaysSo) {
  EXPECT_EQ(status({}, "https://behind.a.proxy", "same-origin"), 200);
  for (const char* site : {"same-site", "cross-site", "none", "x"})
    EXPECT_EQ(status({}, "https://behind.a.proxy", site), 403) << site;
}

TEST(Origin, TheDefaultPortNeedNotBeWritten) {
  HttpRequest request = from("https://server.name");
  for (const char* authority : {"server.name", "SERVER.name:443", "server.name."}) {
    request.authority = parse_authority(authority);
    EXPECT_NO_THROW(check_origin({}, request)) << authority;
  }
  request.authority = parse_authority("server.name:80");
  EXPECT_THROW(check_origin({}, request), ApiError);
}

TEST(Origin, ABodyFromAPageMustBeJson) {
  const auto status_of = [](const std::string& origin, const std::string& type,
                            bool has_body = true) {
    HttpRequest request = from(origin);
    request.has_body = has_body;
    if (!type.empty()) request.headers.emplace_back("content-type", type);
    try {
      check_content_type(request);
    } catch (const ApiError& error) {
      return error.status;
    }
    return 200;
  };
  for (const char* type : {"application/json", "Application/JSON; charset=utf-8",
                           "application/json ;a=b", "application/problem+json"})
    EXPECT_EQ(status_of("http://localhost", type), 200) << type;
  for (const char* type :
       {"text/plain", "", "text/plain; application/json", "text/plain;+json", "application/jsonx",
        "application/x-www-form-urlencoded", "multipart/form-data; boundary=application/json"}) {
    EXPECT_EQ(status_of("http://localhost", type), 415) << type;
    EXPECT_EQ(status_of("", type), 200) << type;  // curl -d
    EXPECT_EQ(status_of("http://localhost", type, /*has_body=*/false), 200) << type;
  }
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
