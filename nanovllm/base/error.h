#pragma once

#include <exception>
#include <new>
#include <stdexcept>
#include <string>

namespace nanovllm {

/// A mistake of the caller or the user: a bad option, a bad file, an unsupported model, an
/// impossible request. Its text is one line that says what is wrong, where, and what would be
/// right. The command line prints it and exits with status 2.
class __attribute__((visibility("default"))) UserError : public std::runtime_error {
 public:
  /// Control characters of `text`, which may have been sent by a client or come from a file, become
  /// escape sequences such as "\n" and "\x00": what() would end at a NUL.
  explicit UserError(const std::string& text);
};

/// A prompt that leaves no room in the context for an answer.
class __attribute__((visibility("default"))) PromptTooLong : public UserError {
 public:
  using UserError::UserError;
};

/// Ends work whose result is no longer needed.
class __attribute__((visibility("default"))) Cancelled : public std::exception {
 public:
  const char* what() const noexcept override { return "cancelled"; }
};

/// The message of an exception, for users: "out of memory" instead of "std::bad_alloc".
inline const char* what_of(const std::exception& error) {
  return dynamic_cast<const std::bad_alloc*>(&error) != nullptr ? "out of memory" : error.what();
}

/// The engine cannot continue, because a step failed or a rank died (cleanup.death). Every caller
/// that waits gets this exception; the process itself continues.
class __attribute__((visibility("default"))) EngineDead : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

}  // namespace nanovllm
