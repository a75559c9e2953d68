#include "apps/batch/line_stream.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "nanovllm/base/check.h"
#include "nanovllm/base/system/files.h"

namespace nanovllm {

namespace {

constexpr size_t kReadBytes = size_t{1} << 16;
constexpr size_t kCountBytes = size_t{1} << 22;
constexpr const char* kBlank = " \t\r";

}  // namespace

bool is_blank(std::string_view line) {
  return line.find_first_not_of(kBlank) == std::string_view::npos;
}

LineStream::LineStream(const std::string& path)
    : name_(path == "-" ? "stdin" : path),
      file_(path == "-" ? ::fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, STDERR_FILENO + 1)
                        : ::open(path.c_str(), O_RDONLY | O_CLOEXEC)) {
  require(file_.get() >= 0, "{}: {}", name_, std::strerror(errno));
  struct stat status {};
  require(::fstat(file_.get(), &status) == 0, "{}: {}", name_, std::strerror(errno));
  require(!S_ISDIR(status.st_mode), "{}: {}", name_, std::strerror(EISDIR));
  is_regular_ = S_ISREG(status.st_mode);
  if (is_regular_) count_offset_ = ::lseek(file_.get(), 0, SEEK_CUR);
}

bool LineStream::is_terminal() const { return ::isatty(file_.get()) == 1; }

std::optional<std::string> LineStream::take(size_t length, bool newline) {
  std::string line = buffer_.substr(begin_, length);
  begin_ = std::min(begin_ + length + 1, buffer_.size());
  searched_ = begin_;
  offset_ += static_cast<int64_t>(length + (newline ? 1 : 0));
  had_newline_ = newline;
  if (begin_ == buffer_.size()) buffer_.clear(), begin_ = searched_ = 0;
  return line;
}

std::optional<std::string> LineStream::next(int wait_ms) {
  for (;;) {
    if (const size_t end = buffer_.find('\n', searched_); end != std::string::npos)
      return take(end - begin_, true);
    if (is_closed_)
      return begin_ < buffer_.size() ? take(buffer_.size() - begin_, false) : std::nullopt;
    require(buffer_.size() - begin_ <= kMaxLineBytes, "{}: a line of more than {} bytes", name_,
            kMaxLineBytes);
    buffer_.erase(0, std::exchange(begin_, 0));
    searched_ = buffer_.size();
    pollfd waiting{file_.get(), POLLIN, 0};
    if (::poll(&waiting, 1, wait_ms) <= 0) return std::nullopt;
    buffer_.resize(searched_ + kReadBytes);
    const ssize_t n = ::read(file_.get(), buffer_.data() + searched_, kReadBytes);
    buffer_.resize(searched_ + static_cast<size_t>(std::max<ssize_t>(n, 0)));
    if (n < 0 && (errno == EINTR || errno == EAGAIN)) return std::nullopt;
    is_closed_ = n <= 0;
    require(n >= 0, "{}: {}", name_, std::strerror(errno));
  }
}

std::optional<int64_t> LineStream::count_lines() {
  if (!is_regular_) return std::nullopt;
  if (counted_all_) return num_lines_;
  std::string chunk(kCountBytes, '\0');
  const ssize_t n = ::pread(file_.get(), chunk.data(), chunk.size(), count_offset_);
  chunk.resize(static_cast<size_t>(std::max<ssize_t>(n, 0)));
  count_offset_ += static_cast<int64_t>(chunk.size());
  for (std::string_view rest = chunk; !rest.empty();) {
    const size_t end = std::min(rest.find('\n'), rest.size());
    blank_ = blank_ && is_blank(rest.substr(0, end));
    if (end == rest.size()) break;  // the line continues in the next chunk
    num_lines_ += std::exchange(blank_, true) ? 0 : 1;
    rest.remove_prefix(end + 1);
  }
  if (!chunk.empty()) return std::nullopt;
  counted_all_ = true;
  num_lines_ += blank_ ? 0 : 1;
  return num_lines_;
}

}  // namespace nanovllm
