#include "nanovllm/base/terminal/progress.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <pty.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <array>
#include <cctype>
#include <cstdlib>

#include "nanovllm/base/terminal/capabilities.h"

namespace nanovllm {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

/// A pseudo-terminal as stderr.
class Terminal {
 public:
  explicit Terminal(int columns, const char* type = "xterm") {
    ::setenv("TERM", type, 1);
    ::unsetenv("XTERM_VERSION");
    EXPECT_EQ(::openpty(&fd_, &stderr_, nullptr, nullptr, nullptr), 0);
    resize(columns);
    saved_ = ::dup(STDERR_FILENO);
    ::dup2(stderr_, STDERR_FILENO);
  }
  ~Terminal() {
    ::dup2(saved_, STDERR_FILENO);
    for (const int fd : {fd_, stderr_, saved_}) ::close(fd);
  }
  Terminal(const Terminal&) = delete;
  Terminal& operator=(const Terminal&) = delete;

  void resize(int columns) const {
    const winsize size{.ws_row = 24,
                       .ws_col = static_cast<unsigned short>(columns),
                       .ws_xpixel = 0,
                       .ws_ypixel = 0};
    EXPECT_EQ(::ioctl(fd_, TIOCSWINSZ, &size), 0);
  }
  /// What was written since the last call.
  std::string written() const {
    std::string out;
    for (pollfd waiting{fd_, POLLIN, 0}; ::poll(&waiting, 1, 0) > 0;) {
      std::array<char, 4096> buffer;
      const ssize_t n = ::read(fd_, buffer.data(), buffer.size());
      if (n <= 0) break;
      out.append(buffer.data(), static_cast<size_t>(n));
    }
    return out;
  }

 private:
  int fd_ = -1, stderr_ = -1, saved_ = -1;
};

/// With 00:00 for every time, because the machine may be slow.
std::string without_times(std::string text) {
  const auto is_digit = [&](size_t i) { return i < text.size() && std::isdigit(text[i]) != 0; };
  for (size_t at = text.find(':'); at != std::string::npos; at = text.find(':', at + 1))
    if (is_digit(at - 1) && is_digit(at + 1)) text.replace(at - 2, 5, "00:00");
  return text;
}

/// A bar at 115 of 256, without the sequences that move the cursor.
std::string drawn(int columns) {
  const Terminal terminal(columns);
  ProgressBar bar("Generating", 256, true);
  bar.hide();
  terminal.written();
  bar.update(115, 0, 0);
  const std::string out = terminal.written();
  EXPECT_THAT(out, StartsWith("\r"));
  EXPECT_THAT(out, ::testing::EndsWith("\x1b[J"));
  return without_times(out.substr(1, out.size() - 4));
}

TEST(ProgressBar, FitsTheTerminal) {
  const std::string blocks = "████▍     ";
  EXPECT_THAT(drawn(200), StartsWith("Generating:  45%|" + blocks + "| 115/256 [00:00<00:00, "));
  EXPECT_THAT(drawn(200), HasSubstr("it/s, Prefill=0tok/s, Decode=0tok/s]"));
  // The rate in iterations is the first that is left out, because it is not nano-vLLM's.
  EXPECT_EQ(drawn(80),
            "Generating:  45%|███▌    | 115/256 [00:00<00:00, Prefill=0tok/s, Decode=0tok/s]");
  EXPECT_EQ(drawn(70), "Generating:  45%|" + blocks + "| 115/256 [00:00<00:00, Decode=0tok/s]");
  EXPECT_EQ(drawn(55), "Generating:  45%|" + blocks + "| 115/256 [00:00<00:00]");
  EXPECT_EQ(drawn(40), "Generating:  45%| 115/256 [00:00<00:00]");
  EXPECT_EQ(drawn(26), "Generating:  45%| 115/256");
  EXPECT_EQ(drawn(20), " 45% 115/256");
  EXPECT_EQ(drawn(10), " 45%");
  EXPECT_EQ(drawn(4), "");
  EXPECT_EQ(drawn(1), "");
  EXPECT_EQ(drawn(0), drawn(80));  // unknown
}

TEST(ProgressBar, UnknownTotalIsACount) {
  const Terminal terminal(80);
  ProgressBar bar("Generating", std::nullopt, true);
  bar.hide();
  terminal.written();
  bar.update(12, 0, 0);
  EXPECT_THAT(without_times(terminal.written()), StartsWith("\rGenerating: 12it [00:00, "));
  terminal.resize(30);
  bar.hide();
  terminal.written();
  bar.update(13, 0, 0);
  EXPECT_EQ(without_times(terminal.written()), "\rGenerating: 13it [00:00]\x1b[J");
  bar.set_total(26);
  bar.hide();
  terminal.written();
  bar.update(13, 0, 0);
  EXPECT_EQ(terminal.written(), "\rGenerating:  50%| 13/26\x1b[J");
}

TEST(ProgressBar, IsReplacedWhereTheTerminalHasWrappedIt) {
  const Terminal terminal(80);
  ProgressBar bar("Generating", 256, true);
  EXPECT_THAT(terminal.written(), Not(HasSubstr("A\r")));
  terminal.resize(40);
  bar.hide();
  EXPECT_EQ(terminal.written(), "\x1b[1A\r\x1b[J");
  bar.update(115, 0, 0);
  EXPECT_EQ(without_times(terminal.written()), "\rGenerating:  45%| 115/256 [00:00<00:00]\x1b[J");
  terminal.resize(10);
  bar.hide();
  EXPECT_EQ(terminal.written(), "\x1b[3A\r\x1b[J");
}

TEST(ProgressBar, ADumbTerminalGetsNoEscapeSequences) {
  const Terminal terminal(26, "dumb");
  EXPECT_FALSE(may_style(STDERR_FILENO));
  ProgressBar bar("Generating", 8, true);
  EXPECT_EQ(terminal.written(), "\rGenerating:   0%| 0/8");
  bar.hide();
  EXPECT_EQ(terminal.written(), "\r" + std::string(21, ' ') + "\r");
}

TEST(Capabilities, NoColorTurnsStylesOff) {
  const Terminal terminal(80);
  EXPECT_TRUE(may_style(STDERR_FILENO));
  ::setenv("NO_COLOR", "1", 1);
  EXPECT_FALSE(may_style(STDERR_FILENO));
  EXPECT_TRUE(has_escape_sequences());
  ::unsetenv("NO_COLOR");
}

}  // namespace
}  // namespace nanovllm
