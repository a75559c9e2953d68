#pragma once

#include <fmt/format.h>

#include <source_location>
#include <type_traits>
#include <utility>

#include "nanovllm/base/error.h"

namespace nanovllm {

namespace detail {
template <class... Args>
struct LocatedFormat {
  fmt::format_string<Args...> text;
  std::source_location where;
  template <class Text>
  consteval LocatedFormat(const Text& t, std::source_location w = std::source_location::current())
      : text(t), where(w) {}
};
}  // namespace detail

/// Checks an invariant of the program, in release builds too. Throws std::logic_error with file and
/// line if `condition` is false.
template <class... Args>
void check(bool condition, detail::LocatedFormat<std::type_identity_t<Args>...> format,
           Args&&... args) {
  if (condition) [[likely]]
    return;
  throw std::logic_error(fmt::format("{}:{}: {}", format.where.file_name(), format.where.line(),
                                     fmt::format(format.text, std::forward<Args>(args)...)));
}

/// Checks a condition for which the caller or the user is responsible. Throws UserError with the
/// formatted message if `condition` is false.
template <class... Args>
void require(bool condition, fmt::format_string<std::type_identity_t<Args>...> format,
             Args&&... args) {
  if (condition) [[likely]]
    return;
  throw UserError(fmt::format(format, std::forward<Args>(args)...));
}

/// Throws UserError with the formatted message.
template <class... Args>
[[noreturn]] void fail(fmt::format_string<Args...> format, Args&&... args) {
  throw UserError(fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace nanovllm
