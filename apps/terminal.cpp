#include "terminal.h"

#include <fmt/format.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>

#include "commands.h"

namespace nanovllm {

namespace {

volatile std::sig_atomic_t guarded = 0;
volatile std::sig_atomic_t num_interrupts = 0;

extern "C" void on_interrupt(int) {
  if (guarded == 0 || num_interrupts > 0) ::_exit(kExitInterrupted);
  num_interrupts = 1;
}

}  // namespace

void handle_signals() {
  struct sigaction action {};
  action.sa_handler = on_interrupt;
  action.sa_flags = SA_RESTART;  // an answer that is being written goes on
  ::sigaction(SIGINT, &action, nullptr);
  ::sigaction(SIGTERM, &action, nullptr);
  std::signal(SIGPIPE, SIG_IGN);
}

InterruptGuard::InterruptGuard() {
  num_interrupts = 0;
  guarded = 1;
}
InterruptGuard::~InterruptGuard() { guarded = 0; }
bool InterruptGuard::interrupted() { return num_interrupts > 0; }

void print_out(std::string_view text) {
  if (std::fwrite(text.data(), 1, text.size(), stdout) == text.size() && std::fflush(stdout) == 0)
    return;
  if (errno == EPIPE) throw OutputClosed();
  throw std::runtime_error(fmt::format("cannot write to stdout: {}", std::strerror(errno)));
}

std::string repr(std::string_view text) {
  const bool single =
      text.find('\'') == std::string_view::npos || text.find('"') != std::string_view::npos;
  const char quote = single ? '\'' : '"';
  std::string out(1, quote);
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '\n') out += "\\n";
    else if (c == '\r') out += "\\r";
    else if (c == '\t') out += "\\t";
    else if (c == '\\' || c == quote) (out += '\\') += c;
    else if (byte < 0x20 || byte == 0x7f) out += fmt::format("\\x{:02x}", byte);
    else out += c;
  }
  return out += quote;
}

}  // namespace nanovllm
