#include "nanovllm/base/system/input_file.h"

#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "nanovllm/base/check.h"
#include "nanovllm/base/system/files.h"

namespace nanovllm {

InputFile::InputFile(const std::string& path) : path_(path), fd_(open_regular_file(path)) {
  require(::fstat(fd_.get(), &status_) == 0, "{}: {}", path, std::strerror(errno));
}

void InputFile::read(size_t offset, void* to, size_t bytes) const {
  for (size_t done = 0; done < bytes;) {
    const ssize_t n = ::pread(fd_.get(), static_cast<char*>(to) + done, bytes - done,
                              static_cast<off_t>(offset + done));
    if (n < 0 && errno == EINTR) continue;
    require(n >= 0, "{}: {}", path_, std::strerror(errno));
    require(n > 0, "{}: the file became shorter while it was read", path_);
    done += static_cast<size_t>(n);
  }
}

void InputFile::require_unchanged() const {
  struct stat now = {};
  require(::fstat(fd_.get(), &now) == 0, "{}: {}", path_, std::strerror(errno));
  require(now.st_size == status_.st_size && now.st_mtim.tv_sec == status_.st_mtim.tv_sec &&
              now.st_mtim.tv_nsec == status_.st_mtim.tv_nsec,
          "{}: the file was changed while it was read", path_);
}

}  // namespace nanovllm
