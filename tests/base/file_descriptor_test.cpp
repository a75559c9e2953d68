#include "nanovllm/base/system/file_descriptor.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

namespace nanovllm {
namespace {

int open_null() { return ::open("/dev/null", O_RDONLY | O_CLOEXEC); }
bool is_open(int fd) { return ::fcntl(fd, F_GETFD) >= 0; }

TEST(FileDescriptor, ClosesItsNumberOnce) {
  int number = -1;
  {
    const FileDescriptor fd(open_null());
    number = fd.get();
    ASSERT_TRUE(is_open(number));
  }
  EXPECT_FALSE(is_open(number));
}

TEST(FileDescriptor, MovesItsNumber) {
  FileDescriptor first(open_null()), second(open_null());
  const int a = first.get(), b = second.get();
  FileDescriptor moved(std::move(first));
  EXPECT_EQ(moved.get(), a);
  second = std::move(moved);
  EXPECT_EQ(second.get(), a);
  EXPECT_TRUE(is_open(a));
  { const FileDescriptor last(std::move(moved)); }  // the descriptor that `second` had
  EXPECT_FALSE(is_open(b));
}

TEST(FileDescriptor, FailedCallIsKeptWithItsErrno) {
  const FileDescriptor none(::open("/nowhere", O_RDONLY));
  EXPECT_EQ(errno, ENOENT);
  EXPECT_EQ(none.get(), -1);
}

// If a standard stream is closed, the next file that is opened gets its number, and whatever is
// printed to the stream would be written to the file.
TEST(FileDescriptor, NeverHasTheNumberOfAStandardStream) {
  for (const int stream : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    const int saved = ::fcntl(stream, F_DUPFD_CLOEXEC, 3);
    ::close(stream);
    int number = -1;
    bool is_stream_open = true;
    {
      const FileDescriptor fd(open_null());
      number = fd.get();
      is_stream_open = is_open(stream);
    }
    ::dup2(saved, stream);
    ::close(saved);
    EXPECT_GT(number, STDERR_FILENO);
    EXPECT_FALSE(is_stream_open);
  }
}

}  // namespace
}  // namespace nanovllm
