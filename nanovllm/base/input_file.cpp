#include "nanovllm/base/input_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "nanovllm/base/check.h"

namespace nanovllm {

// O_NONBLOCK: to open a pipe would otherwise wait for its writer.
InputFile::InputFile(const std::string& path)
    : path_(path), fd_(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY)) {
  require(fd_.get() >= 0 && ::fstat(fd_.get(), &status_) == 0, "{}: {}", path,
          std::strerror(errno));
  require(S_ISREG(status_.st_mode), "{}: not a regular file", path);
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
