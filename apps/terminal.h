#pragma once

#include <stdexcept>
#include <string>
#include <string_view>

#include "nanovllm/base/output.h"

namespace nanovllm {

/// Thrown if the reader of stdout has closed it. The program then ends without a message.
class OutputClosed : public std::runtime_error {
 public:
  OutputClosed() : std::runtime_error("stdout was closed") {}
};

/// Writes and flushes. On a terminal, control characters except newlines and tabs are escaped,
/// since the text may come from a model or a file; a pipe or a file gets every byte unchanged.
/// Throws OutputClosed on a broken pipe, and std::runtime_error with the reason otherwise (a full
/// disk).
void print_out(std::string_view text);

/// print_out() without escaping, for text to which this program has added escape sequences itself.
void print_styled(std::string_view text);

/// Prints one line on stderr, whatever characters `what` has. Never throws.
void print_error(std::string_view what);

/// While an object of this class exists, the first Ctrl-C or SIGTERM only sets a flag; on a
/// terminal a line says that Ctrl-C was noticed, since a step may take long. The second signal, or
/// a signal at any other time, ends the process with exit status 128 + the signal's number: 130 or
/// 143.
class InterruptGuard {
 public:
  InterruptGuard();
  ~InterruptGuard();
  InterruptGuard(const InterruptGuard&) = delete;
  InterruptGuard& operator=(const InterruptGuard&) = delete;

  static bool interrupted();
  /// The exit status of a command that was interrupted.
  static int exit_status();
};

/// While an object of this class exists, the terminal of stdin delivers single keys without an
/// echo, Ctrl-C and Ctrl-Z are keys, and a paste is between "\x1b[200~" and "\x1b[201~". A signal
/// that ends the process restores the terminal first.
class RawMode {
 public:
  RawMode();
  ~RawMode();
  RawMode(const RawMode&) = delete;
  RawMode& operator=(const RawMode&) = delete;

  /// Sets the modes again after the process was stopped.
  void enter() const;
  void leave() const;
};

/// Installs the signal handlers. Broken pipes and files that have reached their size limit become
/// errors of print_out(). The dynamic linker has already called it before any library's
/// initializers.
void handle_signals();

/// How many tokens an answer has and how fast they came, for the line below it.
std::string speed_of(const RequestOutput& output);

/// The text, which must be UTF-8, as Python's repr() shows it.
std::string repr(std::string_view text);

}  // namespace nanovllm
