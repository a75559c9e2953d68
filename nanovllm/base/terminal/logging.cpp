#include "nanovllm/base/terminal/logging.h"

#include <fmt/format.h>
#include <poll.h>
#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/base_sink.h>
#include <unistd.h>

#include <mutex>
#include <string>
#include <string_view>

#include "nanovllm/base/terminal/escape.h"

namespace nanovllm {

namespace {

/// Writes the message with escape_controls(), because it may contain texts from files and options.
class EscapedMessage final : public spdlog::custom_flag_formatter {
 public:
  void format(const spdlog::details::log_msg& message, const std::tm&,
              spdlog::memory_buf_t& out) override {
    const std::string text = escape_controls({message.payload.data(), message.payload.size()});
    out.append(text.data(), text.data() + text.size());
  }
  std::unique_ptr<spdlog::custom_flag_formatter> clone() const override {
    return std::make_unique<EscapedMessage>();
  }
};

/// Writes lines to stderr, but never waits there: if a pipe is full because nobody reads it, or a
/// disk is full, lines are lost. The next line that can be written says how many. A line of which
/// stderr took only a part is completed before any other.
class NonBlockingStderr final : public spdlog::sinks::base_sink<std::mutex> {
 protected:
  void sink_it_(const spdlog::details::log_msg& message) override {
    spdlog::memory_buf_t line;
    formatter_->format(message, line);
    rest_.erase(0, write(rest_));
    if (num_lost_ > 0 && begin(fmt::format("warning: {} lines of the log were lost\n", num_lost_)))
      num_lost_ = 0;
    if (num_lost_ > 0 || !begin({line.data(), line.size()})) ++num_lost_;
  }
  void flush_() override {}

 private:
  /// Writes a line or its first bytes. Returns false if nothing was written.
  bool begin(std::string_view line) {
    if (!rest_.empty()) return false;
    const size_t written = write(line);
    if (written > 0) rest_ = line.substr(written);
    return written > 0;
  }

  /// Returns how many bytes were written.
  static size_t write(std::string_view text) {
    // A pipe that can be written to takes this many bytes without waiting.
    constexpr size_t kMostBytes = 4096;
    size_t written = 0;
    while (written < text.size()) {
      pollfd stderr_now = {STDERR_FILENO, POLLOUT, 0};
      if (::poll(&stderr_now, 1, 0) != 1 || (stderr_now.revents & POLLOUT) == 0) break;
      const std::string_view piece = text.substr(written, kMostBytes);
      const ssize_t done = ::write(STDERR_FILENO, piece.data(), piece.size());
      if (done <= 0) break;
      written += static_cast<size_t>(done);
    }
    return written;
  }

  std::string rest_;  // the rest of a line of which stderr took only a part
  int64_t num_lost_ = 0;
};

}  // namespace

spdlog::logger& log() {
  static spdlog::logger logger = [] {
    auto formatter = std::make_unique<spdlog::pattern_formatter>();
    formatter->add_flag<EscapedMessage>('*').set_pattern("%l: %*");
    spdlog::logger made("nanovllm", std::make_shared<NonBlockingStderr>());
    made.set_formatter(std::move(formatter));
    return made;
  }();
  return logger;
}

}  // namespace nanovllm
