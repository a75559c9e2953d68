#include "nanovllm/server/http/unix_socket.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <boost/asio/local/stream_protocol.hpp>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <thread>
#include <utility>

#include "nanovllm/base/check.h"
#include "nanovllm/base/system/file_descriptor.h"

namespace nanovllm::server {

namespace {

/// A lock of the folder of a file, which needs no lock file. The kernel drops it when the process
/// ends. In a folder that may not be read there is no lock.
class FolderLock {
 public:
  explicit FolderLock(const std::string& path)
      : folder_(::open(folder_of(path).c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)) {
    constexpr int kTries = 100;
    constexpr std::chrono::milliseconds kPause{20};
    for (int i = 0; is_refused_ && i < kTries; ++i) {
      if (i > 0) std::this_thread::sleep_for(kPause);
      is_refused_ = ::flock(folder_.get(), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK;
    }
  }
  /// Whether another process has the lock, and kept it.
  bool is_refused() const { return is_refused_; }

 private:
  static std::string folder_of(const std::string& path) {
    const size_t slash = path.rfind('/');
    return slash == std::string::npos ? "." : path.substr(0, slash + 1);
  }
  const FileDescriptor folder_;
  bool is_refused_ = true;
};

/// Throws UserError if a server still listens on the socket.
void require_dead(const std::string& path) {
  const FileDescriptor probe(::socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  sockaddr_un address{.sun_family = AF_UNIX, .sun_path = {}};
  path.copy(address.sun_path, sizeof address.sun_path - 1);
  const int failed =
      ::connect(probe.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address);
  // A server whose queue is full is busy, and not dead.
  require(failed != 0 && errno != EAGAIN, "uds {}: a server listens there already", path);
  require(errno == ECONNREFUSED, "uds {}: {}", path, std::strerror(errno));
}

}  // namespace

UnixSocketFile::UnixSocketFile(std::string path, Acceptor& acceptor) : path_(std::move(path)) {
  constexpr size_t kMostBytes = sizeof(sockaddr_un::sun_path) - 1;
  require(path_.size() <= kMostBytes,
          "uds: the path of a Unix socket has at most {} bytes, and this one has {}", kMostBytes,
          path_.size());
  const FolderLock lock(path_);
  require(!lock.is_refused(), "uds {}: another program has locked the folder", path_);
  struct stat file {};
  if (::lstat(path_.c_str(), &file) == 0) {
    require(S_ISSOCK(file.st_mode), "uds {}: there is a file that is not a socket", path_);
    require_dead(path_);
    require(::unlink(path_.c_str()) == 0, "uds {}: {}", path_, std::strerror(errno));
  }
  acceptor.open(asio::local::stream_protocol());
  acceptor.bind(asio::local::stream_protocol::endpoint(path_));
  acceptor.listen();
  require(::lstat(path_.c_str(), &file) == 0, "uds {}: {}", path_, std::strerror(errno));
  device_ = file.st_dev;
  inode_ = file.st_ino;
}

void UnixSocketFile::remove() const {
  const FolderLock lock(path_);
  struct stat file {};
  if (lock.is_refused() || ::lstat(path_.c_str(), &file) != 0) return;
  if (file.st_dev == device_ && file.st_ino == inode_) ::unlink(path_.c_str());
}

}  // namespace nanovllm::server
