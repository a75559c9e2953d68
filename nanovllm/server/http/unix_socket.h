#pragma once

#include <string>

namespace nanovllm::server {

/// The file of a Unix socket. It is removed at the end, and before the start if it was left by a
/// server that has ended.
class UnixSocketFile {
 public:
  /// Throws UserError if the path is another file, or another server's socket.
  explicit UnixSocketFile(std::string path);
  UnixSocketFile(const UnixSocketFile&) = delete;
  ~UnixSocketFile() { remove(); }
  /// Removes the file now, for an end without destructors.
  void remove() const;

 private:
  const std::string path_;
};

}  // namespace nanovllm::server
