#include "nanovllm/server/http/unix_socket.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <boost/asio/local/stream_protocol.hpp>
#include <filesystem>
#include <fstream>

#include "nanovllm/base/error.h"
#include "nanovllm/server/http/asio.h"

namespace nanovllm::server {
namespace {

using Local = asio::local::stream_protocol;

class UnixSockets : public ::testing::Test {
 protected:
  UnixSockets() { std::filesystem::remove(path); }
  ~UnixSockets() override { std::filesystem::remove(path); }
  void expect_error(const std::string& part) const {
    try {
      const UnixSocketFile file(path);
      FAIL() << "no error";
    } catch (const UserError& error) {
      EXPECT_THAT(error.what(), ::testing::HasSubstr(part));
    }
  }
  asio::io_context io;
  std::string path = ::testing::TempDir() + "unix_socket_" + std::to_string(::getpid());
};

TEST_F(UnixSockets, TheFileIsRemovedAtTheEnd) {
  {
    const UnixSocketFile file(path);
    const Local::acceptor acceptor(io, Local::endpoint(path));
    EXPECT_TRUE(std::filesystem::exists(path));
  }
  EXPECT_FALSE(std::filesystem::exists(path));
}

TEST_F(UnixSockets, AFileOfAServerThatHasEndedIsReplaced) {
  { const Local::acceptor killed(io, Local::endpoint(path)); }  // does not remove its file
  ASSERT_TRUE(std::filesystem::exists(path));
  const UnixSocketFile file(path);
  EXPECT_FALSE(std::filesystem::exists(path));
}

TEST_F(UnixSockets, OtherFilesAndOtherServersStay) {
  std::ofstream(path) << "data";
  expect_error("not a socket");
  std::filesystem::remove(path);
  std::filesystem::create_symlink("/nowhere", path);
  expect_error("not a socket");
  EXPECT_TRUE(std::filesystem::is_symlink(path));
  std::filesystem::remove(path);
  const Local::acceptor other(io, Local::endpoint(path));
  expect_error("a server listens there already");
  EXPECT_TRUE(std::filesystem::is_socket(path));
}

TEST_F(UnixSockets, LongPathsAreRefused) {
  path += std::string(200, 'a');
  expect_error("has at most 107 bytes");
}

}  // namespace
}  // namespace nanovllm::server
