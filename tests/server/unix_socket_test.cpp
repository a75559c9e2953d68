#include "nanovllm/server/http/unix_socket.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <boost/asio/local/stream_protocol.hpp>
#include <filesystem>
#include <fstream>
#include <optional>
#include <thread>
#include <vector>

#include "nanovllm/base/error.h"
#include "nanovllm/base/system/file_descriptor.h"

namespace nanovllm::server {
namespace {

using Local = asio::local::stream_protocol;

class UnixSockets : public ::testing::Test {
 protected:
  UnixSockets() {
    std::filesystem::remove_all(folder);
    std::filesystem::create_directory(folder);
  }
  ~UnixSockets() override { std::filesystem::remove_all(folder); }
  /// What the attempt to listen on the path ends with; empty if it succeeds.
  std::string error() {
    UnixSocketFile::Acceptor acceptor(io);
    try {
      const UnixSocketFile file(path, acceptor);
    } catch (const UserError& e) {
      return e.what();
    }
    return "";
  }
  bool is_served() {
    error_code failed;
    Local::socket(io).connect(Local::endpoint(path), failed);
    return !failed;
  }
  asio::io_context io;
  std::string folder = ::testing::TempDir() + "unix_sockets_" + std::to_string(::getpid());
  std::string path = folder + "/socket";
};

TEST_F(UnixSockets, TheFileIsRemovedAtTheEnd) {
  {
    UnixSocketFile::Acceptor acceptor(io);
    const UnixSocketFile file(path, acceptor);
    EXPECT_TRUE(is_served());
  }
  EXPECT_FALSE(std::filesystem::exists(path));
}

TEST_F(UnixSockets, AFileOfAServerThatHasEndedIsReplaced) {
  { const Local::acceptor killed(io, Local::endpoint(path)); }  // does not remove its file
  ASSERT_TRUE(std::filesystem::exists(path));
  EXPECT_EQ(error(), "");
}

TEST_F(UnixSockets, OtherFilesAndOtherServersStay) {
  std::ofstream(path) << "data";
  EXPECT_THAT(error(), ::testing::HasSubstr("not a socket"));
  std::filesystem::remove(path);
  std::filesystem::create_symlink("/nowhere", path);
  EXPECT_THAT(error(), ::testing::HasSubstr("not a socket"));
  EXPECT_TRUE(std::filesystem::is_symlink(path));
  std::filesystem::remove(path);
  const Local::acceptor other(io, Local::endpoint(path));
  EXPECT_THAT(error(), ::testing::HasSubstr("a server listens there already"));
  EXPECT_TRUE(is_served());
}

TEST_F(UnixSockets, ABusyServerIsNotTakenForADeadOne) {
  Local::acceptor busy(io, Local());
  busy.bind(Local::endpoint(path));
  busy.listen(0);  // which is a queue of one
  Local::socket first(io);
  first.connect(Local::endpoint(path));
  EXPECT_THAT(error(), ::testing::HasSubstr("a server listens there already"));
}

// It was stopped late, or the file was removed by hand.
TEST_F(UnixSockets, TheFileOfASuccessorStays) {
  UnixSocketFile::Acceptor acceptor(io), later(io);
  std::optional<UnixSocketFile> file(std::in_place, path, acceptor);
  std::filesystem::remove(path);
  const UnixSocketFile successor(path, later);
  file->remove();
  EXPECT_TRUE(is_served());
  file.reset();
  EXPECT_TRUE(is_served());
}

TEST_F(UnixSockets, AFileThatIsNotASocketStays) {
  UnixSocketFile::Acceptor acceptor(io);
  const UnixSocketFile file(path, acceptor);
  std::filesystem::remove(path);
  std::ofstream(path) << "data";
  file.remove();
  EXPECT_TRUE(std::filesystem::exists(path));
}

// Each of them finds the file of a dead server, or that of another one that does not listen yet.
TEST_F(UnixSockets, OfServersThatStartTogetherOneListens) {
  for (int round = 0; round < 20; ++round) {
    { const Local::acceptor killed(io, Local::endpoint(path)); }
    constexpr int kServers = 4;
    std::vector<std::optional<UnixSocketFile>> files(kServers);
    std::vector<UnixSocketFile::Acceptor> acceptors;
    for (int i = 0; i < kServers; ++i) acceptors.emplace_back(io);
    std::vector<std::thread> threads;
    for (int i = 0; i < kServers; ++i)
      threads.emplace_back([&, i] {
        try {
          files[i].emplace(path, acceptors[i]);
        } catch (const UserError&) {
        }
      });
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(std::ranges::count_if(files, [](const auto& file) { return file.has_value(); }), 1);
    EXPECT_TRUE(is_served());
  }
}

TEST_F(UnixSockets, ALockedFolderIsAnErrorAndKeepsTheFile) {
  UnixSocketFile::Acceptor acceptor(io);
  const UnixSocketFile file(path, acceptor);
  const FileDescriptor other(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  ASSERT_EQ(::flock(other.get(), LOCK_EX), 0);
  EXPECT_THAT(error(), ::testing::HasSubstr("locked"));
  file.remove();
  EXPECT_TRUE(is_served());
}

TEST_F(UnixSockets, LongPathsAreRefused) {
  path += std::string(200, 'a');
  EXPECT_THAT(error(), ::testing::HasSubstr("has at most 107 bytes"));
}

}  // namespace
}  // namespace nanovllm::server
