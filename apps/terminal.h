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

/// Writes and flushes. On a terminal control characters but newlines and tabs are written out,
/// since texts of models and files come this way; a pipe or a file gets each byte as it is. Throws
/// OutputClosed on a broken pipe, std::runtime_error with the reason otherwise (a full disk).
void print_out(std::string_view text);

/// The same for what this program itself has put escape sequences into.
void print_styled(std::string_view text);

/// One line on stderr, whatever characters `what` has. Never throws.
void print_error(std::string_view what);

/// While one lives, Ctrl-C and SIGTERM only set a flag; the second one, or one at any other time,
/// ends the process with 128 and the signal's number: 130 or 143.
class InterruptGuard {
 public:
  InterruptGuard();
  ~InterruptGuard();
  InterruptGuard(const InterruptGuard&) = delete;
  InterruptGuard& operator=(const InterruptGuard&) = delete;

  static bool interrupted();
  /// Of a command that was interrupted.
  static int exit_status();
};

/// Installs the handlers; broken pipes and files that may grow no further become errors of
/// print_out(). The dynamic linker has called it already, before any library's initializers.
void handle_signals();

/// As Python's repr() of a text.
std::string repr(std::string_view text);

}  // namespace nanovllm
