#pragma once

#include <stdexcept>
#include <string>
#include <string_view>

namespace nanovllm {

/// stdout was closed by its reader: the program ends without a word.
class OutputClosed : public std::runtime_error {
 public:
  OutputClosed() : std::runtime_error("stdout was closed") {}
};

/// Writes and flushes. Throws OutputClosed on a broken pipe, std::runtime_error with the reason
/// otherwise (a full disk).
void print_out(std::string_view text);

/// While one lives, Ctrl-C and SIGTERM only set a flag; the second one, or one at any other time,
/// ends the process with 130.
class InterruptGuard {
 public:
  InterruptGuard();
  ~InterruptGuard();
  InterruptGuard(const InterruptGuard&) = delete;
  InterruptGuard& operator=(const InterruptGuard&) = delete;

  static bool interrupted();
};

/// Installs the handlers; broken pipes become errors of print_out().
void handle_signals();

/// As Python's repr() of a text.
std::string repr(std::string_view text);

}  // namespace nanovllm
