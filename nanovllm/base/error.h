#pragma once

#include <new>
#include <stdexcept>

namespace nanovllm {

/// The caller's mistake: a bad option, a bad file, an unsupported model, an impossible request. Its
/// text is one line that says what is wrong, where, and what would be right; the command line
/// prints it and ends with 2.
class __attribute__((visibility("default"))) UserError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// What an exception says, in words that need no knowledge of C++.
inline const char* what_of(const std::exception& error) {
  return dynamic_cast<const std::bad_alloc*>(&error) != nullptr ? "out of memory" : error.what();
}

/// The engine cannot go on (a step failed, a rank died). Every waiting caller gets it; the process
/// lives on.
class __attribute__((visibility("default"))) EngineDead : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

}  // namespace nanovllm
