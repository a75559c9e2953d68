#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <stdexcept>
#include <stop_token>
#include <string>
#include <string_view>
#include <utility>

#include "nanovllm/base/error.h"
#include "nanovllm/base/terminal/escape.h"

// Errors of templates, and the limits that end a hostile one in bounded time and memory.
namespace nanovllm::jinja {

/// An error of a template, with the byte offset of the place in its source. An error that is raised
/// without an offset gets the offset of the innermost expression that raised it. Control characters
/// of the text, which may come from a message, are escaped, because what() would end at a NUL.
class TemplateError : public std::runtime_error {
 public:
  static constexpr size_t kUnknown = static_cast<size_t>(-1);
  TemplateError(size_t offset, const std::string& what)
      : std::runtime_error(escape_controls(what, /*keep_lines=*/true)), offset(offset) {}
  size_t offset;
};

template <class... Args>
[[noreturn]] void raise_at(size_t offset, fmt::format_string<Args...> format, Args&&... args) {
  throw TemplateError(offset, fmt::format(format, std::forward<Args>(args)...));
}
template <class... Args>
[[noreturn]] void raise(fmt::format_string<Args...> format, Args&&... args) {
  raise_at(TemplateError::kUnknown, format, std::forward<Args>(args)...);
}

/// The limits of one rendering. Steps count evaluated expressions and everything else that takes
/// time. Bytes count all memory that was ever allocated, even if it is already freed, so that they
/// bound the time as well. Interpreter::call() and Bound charge for the arguments and the result of
/// each builtin. A function that builds more than it reads charges the rest before it allocates.
class Budget {
 public:
  static constexpr int64_t kSteps = 10'000'000;
  static constexpr int64_t kBytes = int64_t{64} << 20;

  explicit Budget(int64_t max_steps = kSteps, int64_t max_bytes = kBytes)
      : max_steps_(max_steps), max_bytes_(max_bytes) {}
  /// A request to stop ends the rendering with Cancelled.
  explicit Budget(std::stop_token stop) : Budget() { stop_ = std::move(stop); }

  /// Raises both limits for an input variable of `input_bytes` bytes, because the work of an honest
  /// template is proportional to its input. A long conversation needs a few percent of the limits.
  void grow(size_t input_bytes) {
    max_steps_ += 4 * static_cast<int64_t>(input_bytes);
    max_bytes_ += 64 * static_cast<int64_t>(input_bytes);
  }
  void step(size_t count = 1) {
    steps_ += static_cast<int64_t>(count);
    if (steps_ > max_steps_) raise("the template takes more than {} steps", max_steps_);
    if (stop_.stop_requested()) throw Cancelled();
  }
  /// Charges a sixteenth of a step for a byte: reading is cheap, but a loop may read a long text
  /// again and again.
  void read(size_t bytes) { step(bytes / 16); }
  /// Charges for bytes. Call it before they are allocated.
  void build(size_t bytes) {
    if (bytes > static_cast<size_t>(max_bytes_ - bytes_))
      raise("the template builds more than {} bytes", max_bytes_);
    bytes_ += static_cast<int64_t>(bytes);
  }
  /// Charges for a text as a value: its bytes and the objects that hold them.
  void build_text(size_t bytes) { build(bytes + 80); }

 private:
  int64_t steps_ = 0;
  int64_t bytes_ = 0;
  int64_t max_steps_;
  int64_t max_bytes_;
  std::stop_token stop_;
};

/// Counts one level of recursion while the object exists.
class Level {
 public:
  Level(int& depth, int max_depth, std::string_view what) : depth_(depth) {
    if (depth >= max_depth) raise("{} deeper than {} levels", what, max_depth);
    ++depth_;
  }
  ~Level() { --depth_; }
  Level(const Level&) = delete;
  Level& operator=(const Level&) = delete;

 private:
  int& depth_;
};

/// A text that grows within the budget.
class Writer {
 public:
  explicit Writer(Budget& budget) : budget(budget) {}
  void add(std::string_view s) {
    budget.build(s.size());
    text_ += s;
  }
  std::string take() {
    budget.build_text(0);
    return std::move(text_);
  }

  Budget& budget;

 private:
  std::string text_;
};

}  // namespace nanovllm::jinja
