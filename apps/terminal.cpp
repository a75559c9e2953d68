#include "terminal.h"

#include <fmt/format.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>

#include "commands.h"
#include "nanovllm/base/terminal/escape.h"

namespace nanovllm {

namespace {

volatile std::sig_atomic_t guarded = 0;
volatile std::sig_atomic_t interrupted_by = 0;  // a signal's number

extern "C" void on_interrupt(int number) {
  if (guarded == 0 || interrupted_by != 0) ::_exit(128 + number);
  interrupted_by = number;
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
// Installs the signal handlers before the initializers of the shared libraries run, since these
// take most of the time before main(). Not with sanitizers, which must be initialized first.
__attribute__((section(".preinit_array"), used)) void (*handle_signals_early)() = handle_signals;
#endif

void write_out(std::string_view text) {
  if (std::fwrite(text.data(), 1, text.size(), stdout) == text.size() && std::fflush(stdout) == 0)
    return;
  if (errno == EPIPE) throw OutputClosed();
  throw std::runtime_error(fmt::format("cannot write to stdout: {}", std::strerror(errno)));
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
  interrupted_by = 0;
  guarded = 1;
}
InterruptGuard::~InterruptGuard() { guarded = 0; }
bool InterruptGuard::interrupted() { return interrupted_by != 0; }
int InterruptGuard::exit_status() { return 128 + interrupted_by; }

void print_out(std::string_view text) {
  static const bool terminal = ::isatty(STDOUT_FILENO) == 1;
  if (terminal) write_out(escape_controls(text, /*keep_lines=*/true));
  else write_out(text);
}

void print_styled(std::string_view text) { write_out(text); }

void print_error(std::string_view what) {
  try {
    std::fputs(fmt::format("error: {}\n", escape_controls(what)).c_str(), stderr);
  } catch (const std::exception&) {
    std::fputs("error: out of memory\n", stderr);
  }
}

std::string repr(std::string_view text) {
  const bool single =
      text.find('\'') == std::string_view::npos || text.find('"') != std::string_view::npos;
  const char quote = single ? '\'' : '"';
  std::string quoted;
  for (const char c : text) {
    if (c == '\\' || c == quote) quoted += '\\';
    quoted += c;
  }
  return quote + escape_controls(quoted) + quote;
}

}  // namespace nanovllm
