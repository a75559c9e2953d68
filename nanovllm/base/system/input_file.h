#pragma once

#include <sys/stat.h>

#include <cstddef>
#include <string>

#include "nanovllm/base/system/file_descriptor.h"

namespace nanovllm {

/// A regular file that is open for reading at any offset. It is not mapped: if another program
/// truncates a mapped file, this process is killed, and if it overwrites the file, data that was
/// already read changes.
class InputFile {
 public:
  /// Throws UserError that names the path if it cannot be opened or is not a regular file.
  explicit InputFile(const std::string& path);

  const std::string& path() const { return path_; }
  /// The size of the file in bytes when it was opened.
  size_t size() const { return static_cast<size_t>(status_.st_size); }
  /// Reads bytes [offset, offset + bytes) to `to`. Several threads may call it at the same time.
  /// Throws UserError if the file has become shorter or cannot be read.
  void read(size_t offset, void* to, size_t bytes) const;
  /// Throws UserError if the file was written to since it was opened.
  void require_unchanged() const;

 private:
  std::string path_;
  FileDescriptor fd_;
  struct stat status_ = {};  // when it was opened
};

}  // namespace nanovllm
