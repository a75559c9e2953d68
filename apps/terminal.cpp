#include "terminal.h"

#include <fmt/format.h>
#include <termios.h>
#include <unistd.h>
#include <utf8proc.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <utility>

#include "commands.h"
#include "nanovllm/base/strings/utf8.h"
#include "nanovllm/base/terminal/capabilities.h"
#include "nanovllm/base/terminal/escape.h"

namespace nanovllm {

namespace {

volatile std::sig_atomic_t guarded = 0;
volatile std::sig_atomic_t interrupted_by = 0;  // a signal's number
volatile std::sig_atomic_t says_interrupted = 0;
volatile std::sig_atomic_t is_raw = 0, is_styled = 0;
termios modes_before;  // the terminal's modes before is_raw was set

// Writes with calls that a signal handler may make.
void write_all(int fd, std::string_view text) { (void)!::write(fd, text.data(), text.size()); }

void restore_terminal() {
  if (is_raw != 0) {
    write_all(STDOUT_FILENO, "\x1b[?2004l");
    ::tcsetattr(STDIN_FILENO, TCSANOW, &modes_before);
    is_raw = 0;
  }
}

extern "C" void on_interrupt(int number) {
  const int saved_errno = errno;
  if (guarded == 0 || interrupted_by != 0) {
    restore_terminal();
    if (is_styled != 0) write_all(STDOUT_FILENO, "\x1b[0m");
    ::_exit(128 + number);
  }
  interrupted_by = number;
  if (number == SIGINT && says_interrupted != 0)
    write_all(STDERR_FILENO, "\nstopping after this step; press Ctrl-C again to end now\n");
  errno = saved_errno;
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
// Installs the signal handlers before the initializers of the shared libraries run, since these
// take most of the time before main(). With sanitizers, which must be initialized first, this is
// not done.
__attribute__((section(".preinit_array"), used)) void (*handle_signals_early)() = handle_signals;
#endif

void write_out(std::string_view text) {
  if (std::fwrite(text.data(), 1, text.size(), stdout) == text.size() && std::fflush(stdout) == 0)
    return;
  if (errno == EPIPE) throw OutputClosed();
  throw std::runtime_error(fmt::format("cannot write to stdout: {}", std::strerror(errno)));
}

/// Whether Python's repr() shows a character beyond ASCII as it is.
bool is_printable(char32_t c) {
  // The last categories are separators, controls, formats, surrogates and private use.
  const auto category = utf8proc_category(static_cast<utf8proc_int32_t>(c));
  return category != UTF8PROC_CATEGORY_CN && category < UTF8PROC_CATEGORY_ZS;
}

}  // namespace

void handle_signals() {
  struct sigaction action {};
  action.sa_handler = on_interrupt;
  action.sa_flags = SA_RESTART;  // a write that was interrupted continues
  ::sigaction(SIGINT, &action, nullptr);
  ::sigaction(SIGTERM, &action, nullptr);
  std::signal(SIGPIPE, SIG_IGN);
  std::signal(SIGXFSZ, SIG_IGN);
}

InterruptGuard::InterruptGuard() {
  says_interrupted = stderr_is_terminal() ? 1 : 0;
  interrupted_by = 0;
  guarded = 1;
}
InterruptGuard::~InterruptGuard() { guarded = 0; }
bool InterruptGuard::interrupted() { return interrupted_by != 0; }
int InterruptGuard::exit_status() { return 128 + interrupted_by; }

RawMode::RawMode() {
  if (::tcgetattr(STDIN_FILENO, &modes_before) == 0) enter();
}
RawMode::~RawMode() { leave(); }

void RawMode::enter() const {
  termios modes = modes_before;
  modes.c_iflag &= ~static_cast<tcflag_t>(ICRNL | IXON | ISTRIP);
  modes.c_lflag &= ~static_cast<tcflag_t>(ICANON | ECHO | ISIG | IEXTEN);
  modes.c_cc[VMIN] = 1;
  modes.c_cc[VTIME] = 0;
  is_raw = 1;
  ::tcsetattr(STDIN_FILENO, TCSANOW, &modes);  // keeps text that was typed already
  write_all(STDOUT_FILENO, "\x1b[?2004h");
}
void RawMode::leave() const { restore_terminal(); }

void print_out(std::string_view text) {
  static const bool terminal = ::isatty(STDOUT_FILENO) == 1;
  if (terminal) write_out(escape_controls(text, /*keep_lines=*/true));
  else write_out(text);
}

void print_styled(std::string_view text) {
  is_styled = 1;  // before writing, since a signal may end the process in the middle of the text
  write_out(text);
}

void print_error(std::string_view what) {
  try {
    std::fputs(fmt::format("error: {}\n", escape_controls(what)).c_str(), stderr);
  } catch (const std::exception&) {
    std::fputs("error: out of memory\n", stderr);
  }
}

std::string speed_of(const RequestOutput& output) {
  const size_t num_tokens = output.token_ids.size();
  std::string text = fmt::format("{} token{}", num_tokens, num_tokens == 1 ? "" : "s");
  const double seconds = output.finish_time - output.first_token_time;
  if (num_tokens > 1 && seconds > 0)
    text += fmt::format(", {:.1f} tokens/s", static_cast<double>(num_tokens - 1) / seconds);
  return text +
         fmt::format(", first token after {:.3f} s", output.first_token_time - output.arrival_time);
}

std::string repr(std::string_view text) {
  const bool single =
      text.find('\'') == std::string_view::npos || text.find('"') != std::string_view::npos;
  const char quote = single ? '\'' : '"';
  std::string quoted(1, quote);
  for (const char *p = text.data(), *const end = p + text.size(); p != end;) {
    const char* const begin = p;
    const char32_t c = next_code_point(p);
    if (c == '\\' || c == static_cast<char32_t>(quote)) quoted += '\\';
    if (c < 0x80 || is_printable(c)) {  // escape_controls() does the rest of ASCII
      quoted.append(begin, p);
      continue;
    }
    const auto [letter, width] = c < 0x100     ? std::pair('x', 2)
                                 : c < 0x10000 ? std::pair('u', 4)
                                               : std::pair('U', 8);
    quoted += fmt::format("\\{}{:0{}x}", letter, static_cast<uint32_t>(c), width);
  }
  return escape_controls(quoted) + quote;
}

}  // namespace nanovllm
