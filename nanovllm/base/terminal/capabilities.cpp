#include "nanovllm/base/terminal/capabilities.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <cstdlib>
#include <string_view>

namespace nanovllm {

namespace {

std::string_view environment(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

}  // namespace

bool stderr_is_terminal() { return ::isatty(STDERR_FILENO) == 1; }

int terminal_width(int fd) {
  winsize size{};
  return ::ioctl(fd, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

bool has_escape_sequences() {
  const std::string_view term = environment("TERM");
  return !term.empty() && term != "dumb";
}

bool may_style(int fd) {
  return ::isatty(fd) == 1 && has_escape_sequences() && environment("NO_COLOR").empty();
}

}  // namespace nanovllm
