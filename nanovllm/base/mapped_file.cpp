#include "nanovllm/base/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "nanovllm/base/check.h"

namespace nanovllm {

MappedFile::MappedFile(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  require(fd >= 0, "{}: {}", path, std::strerror(errno));
  struct stat status {};
  const bool known = ::fstat(fd, &status) == 0;
  const int error = errno;
  if (!known || !S_ISREG(status.st_mode)) {
    ::close(fd);
    fail("{}: {}", path, known ? "not a regular file" : std::strerror(error));
  }
  size_ = static_cast<size_t>(status.st_size);
  void* mapped = size_ == 0 ? nullptr : ::mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, fd, 0);
  const int map_error = errno;
  ::close(fd);
  require(mapped != MAP_FAILED, "{}: {}", path, std::strerror(map_error));
  data_ = static_cast<const char*>(mapped);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(const_cast<char*>(data_), size_);
}

std::string read_file(const std::string& path) { return std::string(MappedFile(path).view()); }

}  // namespace nanovllm
