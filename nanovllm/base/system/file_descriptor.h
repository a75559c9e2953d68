#pragma once

namespace nanovllm {

/// A file descriptor, closed at its end. It is never one of the standard streams: in a process
/// where one of those is closed, the system gives its number to the next file that is opened, and
/// what somebody prints would go there.
class FileDescriptor {
 public:
  /// Takes over `fd`, which may be -1; moves it to a number above the standard streams'. Where the
  /// process can open no more files, get() is -1 and errno says why.
  explicit FileDescriptor(int fd = -1);
  FileDescriptor(FileDescriptor&& other) noexcept;
  FileDescriptor& operator=(FileDescriptor&& other) noexcept;
  ~FileDescriptor();
  int get() const { return fd_; }

 private:
  int fd_;
};

}  // namespace nanovllm
