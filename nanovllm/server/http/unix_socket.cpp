#include "nanovllm/server/http/unix_socket.h"

#include <sys/stat.h>
#include <unistd.h>

#include <boost/asio/local/stream_protocol.hpp>
#include <cerrno>
#include <cstring>
#include <utility>

#include "nanovllm/base/check.h"
#include "nanovllm/server/http/asio.h"

namespace nanovllm::server {

UnixSocketFile::UnixSocketFile(std::string path) : path_(std::move(path)) {
  constexpr size_t kMostBytes = sizeof(sockaddr_un::sun_path) - 1;
  require(path_.size() <= kMostBytes,
          "--uds: the path of a Unix socket has at most {} bytes, and this one has {}", kMostBytes,
          path_.size());
  struct stat file {};
  if (::lstat(path_.c_str(), &file) != 0) {
    require(errno == ENOENT, "--uds {}: {}", path_, std::strerror(errno));
    return;
  }
  require(S_ISSOCK(file.st_mode), "--uds {}: there is a file that is not a socket", path_);
  asio::io_context io;
  asio::local::stream_protocol::socket probe(io);
  error_code error;
  probe.connect(path_, error);
  // A socket that nobody listens on refuses; a listener that is busy does not.
  require(error == asio::error::connection_refused, "--uds {}: a server listens there already",
          path_);
  require(::unlink(path_.c_str()) == 0, "--uds {}: {}", path_, std::strerror(errno));
}

void UnixSocketFile::remove() const { ::unlink(path_.c_str()); }

}  // namespace nanovllm::server
