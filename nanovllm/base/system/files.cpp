#include "nanovllm/base/system/files.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <random>
#include <utility>

#include "nanovllm/base/check.h"

namespace nanovllm {

namespace {

// The file type and permissions of the path, or nothing if it does not exist.
std::optional<mode_t> mode_of(const std::string& path) {
  struct stat status {};
  if (::stat(path.c_str(), &status) == 0) return status.st_mode;
  require(errno == ENOENT || errno == ENOTDIR, "{}: {}", path, std::strerror(errno));
  return std::nullopt;
}

}  // namespace

FileDescriptor open_regular_file(const std::string& path) {
  // Without O_NONBLOCK, opening a FIFO would wait for a writer. It has no effect on regular files.
  FileDescriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
  require(file.get() >= 0, "{}: {}", path, std::strerror(errno));
  struct stat status {};
  require(::fstat(file.get(), &status) == 0, "{}: {}", path, std::strerror(errno));
  require(S_ISREG(status.st_mode), "{}: not a regular file", path);
  return file;
}

std::string read_file(const std::string& path, size_t max_bytes) {
  const FileDescriptor file = open_regular_file(path);
  struct stat status {};
  require(::fstat(file.get(), &status) == 0, "{}: {}", path, std::strerror(errno));
  const auto size = static_cast<size_t>(status.st_size);
  require(size <= max_bytes, "{}: {} bytes; a file of this kind may have at most {}", path, size,
          max_bytes);
  // Reads until the end of the file instead of `size` bytes: files in /proc have size 0, and other
  // files may grow.
  std::string text(size + 1, '\0');
  for (size_t done = 0;;) {
    const ssize_t n = ::read(file.get(), text.data() + done, text.size() - done);
    if (n < 0 && errno == EINTR) continue;
    require(n >= 0, "{}: {}", path, std::strerror(errno));
    done += static_cast<size_t>(n);
    require(done <= max_bytes, "{}: a file of this kind may have at most {} bytes", path,
            max_bytes);
    if (n == 0) {
      text.resize(done);
      return text;
    }
    if (done == text.size()) text.resize(std::min(2 * done, max_bytes + 1));
  }
}

std::optional<std::string> read_file_if_there(const std::string& path, size_t max_bytes) {
  if (!path_exists(path)) return std::nullopt;
  return read_file(path, max_bytes);
}

std::optional<std::string> read_line(FILE* file, const std::string& where) {
  std::string line;
  for (int c; (c = ::getc_unlocked(file)) != EOF;) {
    if (c == '\n') return line;
    require(line.size() < kMaxLineBytes, "{}: a line of more than {} bytes", where, kMaxLineBytes);
    line += static_cast<char>(c);
  }
  require(std::ferror(file) == 0, "{}: {}", where, std::strerror(errno));
  return line.empty() ? std::nullopt : std::optional(std::move(line));
}

bool path_exists(const std::string& path) { return mode_of(path).has_value(); }

bool is_folder(const std::string& path) {
  const auto mode = mode_of(path);
  return mode && S_ISDIR(*mode);
}

void replace_file(const std::string& path, const std::string& text) {
  // Unlike mkostemp(), this gives the file the permissions that the user's umask allows.
  const std::string unfinished = fmt::format("{}.{:08x}", path, std::random_device()());
  const FileDescriptor file(
      ::open(unfinished.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
  require(file.get() >= 0, "{}: {}", path, std::strerror(errno));
  try {
    for (size_t done = 0; done < text.size();) {
      const ssize_t count = ::write(file.get(), text.data() + done, text.size() - done);
      require(count > 0 || errno == EINTR, "{}: {}", path, std::strerror(errno));
      done += static_cast<size_t>(std::max<ssize_t>(count, 0));
    }
    // Without this, after a power failure the new name may have no contents. Some file systems
    // cannot.
    (void)!::fdatasync(file.get());
    require(::rename(unfinished.c_str(), path.c_str()) == 0, "{}: {}", path, std::strerror(errno));
  } catch (...) {
    ::unlink(unfinished.c_str());
    throw;
  }
}

std::string user_folder(const char* variable, const char* below_home) {
  // A relative path is invalid and ignored.
  const auto folder_of = [](const char* name) -> std::string {
    const char* const value = std::getenv(name);
    return value != nullptr && *value == '/' ? value : "";
  };
  if (std::string folder = folder_of(variable); !folder.empty()) return folder;
  const std::string home = folder_of("HOME");
  return home.empty() ? home : home + "/" + below_home;
}

std::string expand_home(const std::string& path) {
  const char* const home = std::getenv("HOME");
  if (home == nullptr || !(path == "~" || path.starts_with("~/"))) return path;
  return home + path.substr(1);
}

void require_model_folder(const std::string& folder) {
  if (is_folder(folder)) return;
  require(!path_exists(folder),
          "{} is a file; a checkpoint folder in Hugging Face layout is needed", folder);
  fail(
      "{}: no such folder; a checkpoint folder in Hugging Face layout is needed, or the id of a "
      "model on the Hugging Face hub, such as Qwen/Qwen3-0.6B",
      folder);
}

}  // namespace nanovllm
