#include "nanovllm/server/http/host.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "nanovllm/server/http/api_error.h"
#include "nanovllm/server/http/http.h"

namespace nanovllm::server {
namespace {

using ::testing::HasSubstr;

/// The status for a request to a server of this name; 200 if it is allowed.
int status(const AllowedHosts& hosts, const std::string& authority) {
  HttpRequest request;
  request.authority = parse_authority(authority);
  EXPECT_TRUE(request.authority) << authority;
  try {
    hosts.check(request);
  } catch (const ApiError& error) {
    EXPECT_THAT(error.body(), HasSubstr("--allowed-hosts"));
    return error.status;
  }
  return 200;
}

constexpr const char* kLoopback[] = {
    "localhost", "LocalHost:8000", "localhost.", "a.localhost:1", "127.0.0.1:8000",
    "127.1.2.3", "[::1]:8000",     "[::1]",      "[0:0::1]",      "[::ffff:127.0.0.1]"};
constexpr const char* kForeign[] = {"evil.example",        "localhost.evil.example:8000",
                                    "evillocalhost",       "127.0.0.1.evil.example",
                                    "127.0.0.1.nip.io:80", "localhost..",
                                    "%6cocalhost",         "2130706433"};
constexpr const char* kAddresses[] = {"10.0.0.1:8000", "0.0.0.0", "[fd00::1]:8000", "8.8.8.8"};

TEST(AllowedHosts, OfAServerOnTheLoopbackInterfaceAreItsNames) {
  const AllowedHosts hosts({}, /*is_local=*/true);
  for (const char* name : kLoopback) EXPECT_EQ(status(hosts, name), 200) << name;
  for (const char* name : kForeign) EXPECT_EQ(status(hosts, name), 403) << name;
  for (const char* name : kAddresses) EXPECT_EQ(status(hosts, name), 403) << name;
  EXPECT_NO_THROW(hosts.check(HttpRequest()));  // HTTP/1.0
}

TEST(AllowedHosts, MayBeMore) {
  const AllowedHosts hosts({"My.Name", "fd00::1", "[fd00::2]", "10.0.0.1", "b."},
                           /*is_local=*/true);
  for (const char* name :
       {"my.name:80", "MY.NAME.", "[fd00::1]:1", "[fd00:0::2]", "10.0.0.1:8000", "b"})
    EXPECT_EQ(status(hosts, name), 200) << name;
  for (const char* name : kLoopback) EXPECT_EQ(status(hosts, name), 200) << name;
  for (const char* name : {"a.my.name", "my.name.evil", "10.0.0.2"})
    EXPECT_EQ(status(hosts, name), 403) << name;
  EXPECT_EQ(status(AllowedHosts({"*"}, true), "evil.example"), 200);
}

TEST(AllowedHosts, OfAnotherServerAreAllUnlessSomeAreGiven) {
  for (const char* name : kForeign) EXPECT_EQ(status(AllowedHosts({}, false), name), 200) << name;
  const AllowedHosts hosts({"a.b"}, false);
  for (const char* name : kForeign) EXPECT_EQ(status(hosts, name), 403) << name;
  // Probes of Kubernetes use addresses, which no DNS name can imitate.
  for (const char* name : kAddresses) EXPECT_EQ(status(hosts, name), 200) << name;
  for (const char* name : kLoopback) EXPECT_EQ(status(hosts, name), 200) << name;
  EXPECT_EQ(status(hosts, "a.b:1"), 200);
}

TEST(AllowedHosts, AreNamesWithoutPort) {
  for (const char* name : {"", "a:1", "http://a", "a/b", "*.a b", "[::1", "[::1]:80"}) {
    const auto make = [&] { AllowedHosts({name}, true); };
    EXPECT_THROW(make(), UserError) << name;
  }
}

}  // namespace
}  // namespace nanovllm::server
