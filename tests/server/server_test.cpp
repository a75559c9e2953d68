#include "nanovllm/server/server.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "nanovllm/base/error.h"

namespace nanovllm::server {
namespace {

/// What run_server() refuses options with, before it loads a model.
template <class Set>
std::string error_of(Set set) {
  ServerOptions options;
  options.port = 0;
  set(options);
  try {
    run_server("no-such-model", EngineConfig(), options);
  } catch (const UserError& error) {
    return error.what();
  }
  return "";
}

// They are for callers of the function. The command line replaces them by its options.
TEST(RunServer, ErrorsBeginWithTheNameOfTheField) {
  using ::testing::StartsWith;
  using Options = ServerOptions;
  EXPECT_THAT(error_of([](Options& o) { o.port = 65536; }), StartsWith("port is 65536; "));
  EXPECT_THAT(error_of([](Options& o) { o.port = -1; }), StartsWith("port is -1; "));
  EXPECT_THAT(error_of([](Options& o) { o.uds = std::string(200, 'a'); }), StartsWith("uds: "));
  EXPECT_THAT(error_of([](Options& o) { o.uds = "/"; }), StartsWith("uds /: "));
  EXPECT_THAT(error_of([](Options& o) { o.allowed_hosts = {"a:1"}; }),
              StartsWith("allowed_hosts contains 'a:1'; "));
  EXPECT_THAT(error_of([](Options& o) { o.max_queued_requests = -1; }),
              StartsWith("max_queued_requests is -1; "));
  EXPECT_THAT(error_of([](Options& o) { o.shutdown_timeout = -1; }),
              StartsWith("shutdown_timeout is -1; "));
}

}  // namespace
}  // namespace nanovllm::server
