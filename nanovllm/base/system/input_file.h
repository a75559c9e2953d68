#pragma once

#include <sys/stat.h>

#include <cstddef>
#include <string>

#include "nanovllm/base/system/file_descriptor.h"

namespace nanovllm {

/// A regular file, open to be read in places. It is not mapped: a mapped file that another program
/// cuts short ends the process, and one that it overwrites changes what was read before.
class InputFile {
 public:
  /// Throws UserError that names the path where it cannot be opened or is no regular file.
  explicit InputFile(const std::string& path);

  const std::string& path() const { return path_; }
  /// Bytes, when it was opened.
  size_t size() const { return static_cast<size_t>(status_.st_size); }
  /// Bytes [offset, offset + bytes) to `to`. Any thread, several at once. Throws UserError where
  /// the file has become shorter or cannot be read.
  void read(size_t offset, void* to, size_t bytes) const;
  /// Throws UserError where the file was written to since it was opened.
  void require_unchanged() const;

 private:
  std::string path_;
  FileDescriptor fd_;
  struct stat status_ = {};  // when it was opened
};

}  // namespace nanovllm
