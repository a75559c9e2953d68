#include "apps/batch/output_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <stdexcept>

#include "apps/batch/line_stream.h"
#include "apps/batch/zeros.h"
#include "nanovllm/base/check.h"
#include "nanovllm/base/system/clock.h"

namespace nanovllm {

namespace {

// The most seconds of results that a power failure may take away.
constexpr double kSecondsBetweenSyncs = 5;
// A power failure damages what was written in the last half minute. If more text than this follows
// the first zero byte, something else has damaged the file, and removing the rest would lose much.
constexpr int64_t kMostTextAfterZeros = int64_t{64} << 20;

}  // namespace

OutputFile::OutputFile(const std::string& path, const ResultFormat& format)
    : path_(path),
      format_(format),
      file_(::open(path.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC | O_NOCTTY, 0666)) {
  require(file_.get() >= 0, "{}: {}", path, std::strerror(errno));
  struct stat status {};
  require(::fstat(file_.get(), &status) == 0, "{}: {}", path, std::strerror(errno));
  is_regular_ = S_ISREG(status.st_mode);
  if (!is_regular_) return;
  require(::flock(file_.get(), LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK,
          "{}: another process is writing its results to this file", path);
  read_held();
  last_sync_ = steady_seconds();
}

void OutputFile::read_held() {
  const Zeros zeros = find_zeros(file_.get(), path_, format_.start);
  LineStream lines(path_);
  for (int64_t number = 1;; ++number) {
    const int64_t begin = lines.offset();
    if (begin == zeros.line) {
      remove_damage(zeros, number);
      break;
    }
    const auto line = lines.next(/*wait_ms=*/-1);
    if (!line) break;
    if (lines.had_newline()) {
      if (!is_blank(*line)) add_held(*line, number);
      continue;
    }
    // A line without its end is removed only if it begins as this program would have written it.
    require(line->starts_with(format_.start) || format_.start.starts_with(*line),
            "{}: line {} is not a result of 'nanovllm generate'; give another --output", path_,
            number);
    cut(begin);
    break;
  }
  size_ = ::lseek(file_.get(), 0, SEEK_END);
}

void OutputFile::remove_damage(const Zeros& zeros, int64_t line_number) {
  require(zeros.is_damaged_result(!held_.empty()),
          "{}: line {} is not a result of 'nanovllm generate'; give another --output", path_,
          line_number);
  require(
      zeros.num_text <= kMostTextAfterZeros,
      "{}: line {} has zero bytes, and {} MiB of text follow, more than a power failure damages; "
      "remove this line, or give another --output",
      path_, line_number, zeros.num_text >> 20);
  num_lost_bytes_ = ::lseek(file_.get(), 0, SEEK_END) - zeros.line;
  cut(zeros.line);
}

void OutputFile::cut(int64_t size) {
  require(::ftruncate(file_.get(), size) == 0, "{}: {}", path_, std::strerror(errno));
}

void OutputFile::add_held(const std::string& line, int64_t line_number) {
  const std::string where = fmt::format("{}: line {}", path_, line_number);
  try {
    const HeldResult result = format_.read(parse_json(line, where));
    held_[result.index] = result;
  } catch (const std::exception&) {
    fail("{} is not a result of 'nanovllm generate'; give another --output", where);
  }
}

bool OutputFile::holds(int64_t index, const ResultKey& prompt) const {
  const auto at = held_.find(index);
  if (at == held_.end()) return false;
  const ResultKey& held = at->second.key;
  const bool is_refused = prompt.prompt == 0;
  const bool is_same = held.fields == prompt.fields &&
                       (held.prompt == 0 || is_refused || held.prompt == prompt.prompt);
  require(is_same,
          "{}: the result with index {} is that of another prompt; give the prompts and options "
          "that the file was written with, or another --output",
          path_, index);
  return held.prompt != 0 || is_refused;
}

int64_t OutputFile::num_results() const {
  return std::ranges::count_if(held_, [](const auto& item) { return item.second.key.prompt != 0; });
}

void OutputFile::append(std::string_view line) {
  for (std::string_view rest = line; !rest.empty();) {
    const ssize_t n = ::write(file_.get(), rest.data(), rest.size());
    if (n >= 0) {
      rest.remove_prefix(static_cast<size_t>(n));
      continue;
    }
    if (errno == EINTR) continue;
    const int error = errno;
    // If this fails too, the next run removes the incomplete line.
    if (is_regular_ && ::ftruncate(file_.get(), size_) != 0) errno = error;
    throw std::runtime_error(fmt::format("cannot write to {}: {}", path_, std::strerror(error)));
  }
  size_ += static_cast<int64_t>(line.size());
  if (steady_seconds() - last_sync_ >= kSecondsBetweenSyncs) sync();
}

void OutputFile::sync() {
  last_sync_ = steady_seconds();
  if (is_regular_ && ::fdatasync(file_.get()) != 0 && errno != EINVAL && errno != ENOTSUP)
    throw std::runtime_error(fmt::format("cannot write to {}: {}", path_, std::strerror(errno)));
}

}  // namespace nanovllm
