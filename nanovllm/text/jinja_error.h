#pragma once

#include <fmt/format.h>

#include <stdexcept>
#include <string>
#include <utility>

namespace nanovllm::jinja {

/// What went wrong in a template, and where: a byte offset in its source, filled in while it is
/// known.
class TemplateError : public std::runtime_error {
 public:
  static constexpr size_t kUnknown = static_cast<size_t>(-1);
  explicit TemplateError(const std::string& what, size_t offset = kUnknown)
      : std::runtime_error(what), offset(offset) {}
  size_t offset;
};

template <class... Args>
[[noreturn]] void raise(fmt::format_string<Args...> format, Args&&... args) {
  throw TemplateError(fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace nanovllm::jinja
