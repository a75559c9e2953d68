#pragma once

#include <gtest/gtest.h>
#include <pty.h>
#include <sys/ioctl.h>
#include <termios.h>

#include <chrono>
#include <filesystem>
#include <thread>

#include "process.h"

namespace nanovllm::testing {

constexpr const char* kCtrlC = "\x03";
constexpr const char* kCtrlD = "\x04";

/// A folder that is removed with its contents.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string name = ::testing::TempDir() + "nanovllm_XXXXXX";
    if (::mkdtemp(name.data()) == nullptr) ADD_FAILURE() << name;
    path_ = name;
  }
  ~TemporaryFolder() { std::filesystem::remove_all(path_); }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  std::string operator/(const std::string& name) const { return path_ / name; }

 private:
  std::filesystem::path path_;
};

/// A run of the nanovllm binary on a separate pseudo-terminal with 80 columns and 24 rows.
class Terminal {
 public:
  /// `environment` has elements NAME=VALUE. The locale is C.
  explicit Terminal(std::vector<std::string> args, std::vector<std::string> environment = {}) {
    args.insert(args.begin(), NANOVLLM_BINARY);
    std::vector<char*> argv;
    for (std::string& arg : args) argv.push_back(arg.data());
    argv.push_back(nullptr);
    winsize size{.ws_row = 24, .ws_col = 80, .ws_xpixel = 0, .ws_ypixel = 0};
    pid_ = ::forkpty(&fd_, nullptr, nullptr, &size);
    if (pid_ != 0) return;
    ::setenv("TERM", "xterm", 1);
    ::setenv("LC_ALL", "C", 1);
    ::setenv("XDG_STATE_HOME", "/dev/null", 1);  // no history
    ::unsetenv("NO_COLOR");
    for (std::string& variable : environment) ::putenv(variable.data());
    ::execv(NANOVLLM_BINARY, argv.data());
    ::_exit(127);
  }
  ~Terminal() {
    if (pid_ > 0) ::kill(pid_, SIGKILL), ::waitpid(pid_, nullptr, 0);
    ::close(fd_);
  }
  Terminal(const Terminal&) = delete;
  Terminal& operator=(const Terminal&) = delete;

  void type(const std::string& keys) const {
    ASSERT_EQ(::write(fd_, keys.data(), keys.size()), static_cast<ssize_t>(keys.size()));
  }
  void send(int signal) const { ::kill(pid_, signal); }
  void resize(int columns) const {
    winsize size{.ws_row = 24,
                 .ws_col = static_cast<unsigned short>(columns),
                 .ws_xpixel = 0,
                 .ws_ypixel = 0};
    EXPECT_EQ(::ioctl(fd_, TIOCSWINSZ, &size), 0);
  }

  /// Waits for `text` and returns the output from the last call to the end of `text`: with "\n" as
  /// line ends, and of the escape sequences only those that set a style ("...m").
  std::string read_until(const std::string& text) {
    while (new_.find(text) == std::string::npos && read_some()) {
    }
    const size_t end = std::min(new_.find(text), new_.size() - text.size()) + text.size();
    std::string out = new_.substr(0, end);
    new_.erase(0, end);
    return out;
  }
  /// The same until a prompt of the line editor, which reads single keys.
  std::string read_until_prompt() {
    std::string out = read_until("\n> ");
    for (const auto end = Clock::now() + kPatience; is_cooked() && Clock::now() < end;)
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    EXPECT_FALSE(is_cooked());
    return out;
  }
  /// Enters a text and returns what is printed after it, until the next prompt.
  std::string say(const std::string& keys) {
    type(keys + "\r");
    read_until("\n");
    new_.insert(0, "\n");
    const std::string out = read_until_prompt();
    return out.substr(1, out.size() - 3);
  }
  /// Whether the terminal collects lines and echoes keys, as a shell expects it.
  bool is_cooked() const {
    termios modes{};
    EXPECT_EQ(::tcgetattr(fd_, &modes), 0);
    return (modes.c_lflag & (ICANON | ECHO)) == (ICANON | ECHO);
  }
  /// Waits for the end of the process and returns its exit status.
  int wait() {
    while (read_some()) {
    }
    int status = -1;
    for (const auto end = Clock::now() + kPatience; Clock::now() < end;) {
      if (::waitpid(pid_, &status, WNOHANG) == pid_) {
        pid_ = -1;
        return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    return -1;
  }
  /// What was printed since the last call.
  const std::string& unread() const { return new_; }

 private:
  using Clock = std::chrono::steady_clock;
  static constexpr std::chrono::seconds kPatience{60};

  // Returns false at the end of the output, or if no output comes for a long time.
  bool read_some() {
    pollfd waiting{fd_, POLLIN, 0};
    if (::poll(&waiting, 1, std::chrono::milliseconds(kPatience).count()) <= 0) return false;
    std::array<char, 4096> buffer;
    const ssize_t n = ::read(fd_, buffer.data(), buffer.size());
    for (ssize_t i = 0; i < n; ++i) add(buffer[i]);
    return n > 0;
  }
  void add(char byte) {
    if (escape_.empty() && byte != '\x1b') {
      if (byte != '\r') new_ += byte;
      return;
    }
    escape_ += byte;
    // "ESC [", parameters, a final byte
    if (escape_.size() < 3 && (escape_ == "\x1b" || escape_ == "\x1b[")) return;
    if (escape_.size() > 2 && (byte < 0x40 || byte > 0x7e)) return;
    if (escape_[1] != '[' || byte == 'm') new_ += escape_;
    escape_.clear();
  }

  pid_t pid_ = -1;
  int fd_ = -1;
  std::string new_ = "\n";  // so that a prompt is always after a newline
  std::string escape_;
};

}  // namespace nanovllm::testing
