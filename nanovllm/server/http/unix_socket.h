#pragma once

#include <sys/types.h>

#include <string>

#include "nanovllm/server/http/asio.h"

namespace nanovllm::server {

/// The file of a Unix socket on which a server listens. The file is removed at the end, and before
/// the start if a server that has ended left it. Since several servers may start or end at the same
/// time, each of them does this while it holds a lock of the folder.
class UnixSocketFile {
 public:
  using Acceptor = asio::basic_socket_acceptor<asio::generic::stream_protocol>;

  /// Lets the acceptor listen. Throws UserError if the path is another kind of file, or another
  /// server listens there. The acceptor has to outlive this object, because no other file has the
  /// same inode while the acceptor exists.
  UnixSocketFile(std::string path, Acceptor& acceptor);
  UnixSocketFile(const UnixSocketFile&) = delete;
  ~UnixSocketFile() { remove(); }
  /// Removes the file now, for an end without destructors. A file that another server has put in
  /// its place stays.
  void remove() const;

 private:
  const std::string path_;
  dev_t device_ = 0;
  ino_t inode_ = 0;
};

}  // namespace nanovllm::server
