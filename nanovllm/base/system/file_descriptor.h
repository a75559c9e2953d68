#pragma once

#include <cstddef>
#include <utility>

namespace nanovllm {

/// A file descriptor that is closed by the destructor. It is never 0, 1 or 2
/// (cleanup.standard-streams): in a process whose standard stream was closed, the next file that is
/// opened would get the stream's number, and output to the stream would be written to the file.
class FileDescriptor {
 public:
  /// Takes ownership of `fd`, which may be -1, and moves it to a number above 2 if necessary. If
  /// the process can open no more files, get() is -1 and errno says why.
  explicit FileDescriptor(int fd = -1);
  FileDescriptor(FileDescriptor&& other) noexcept;
  FileDescriptor& operator=(FileDescriptor&& other) noexcept;
  ~FileDescriptor();
  int get() const { return fd_; }
  /// Gives up ownership: the caller closes the descriptor.
  int release() { return std::exchange(fd_, -1); }

 private:
  int fd_;
};

/// Raises the soft limit of open files to the hard one, for a process with many connections.
/// Returns how many files it may have open.
size_t raise_open_files_limit();

/// How many files this process has open; 0 if it cannot be known, because /proc is not mounted.
size_t num_open_files();

}  // namespace nanovllm
