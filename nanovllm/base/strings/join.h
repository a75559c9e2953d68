#pragma once

#include <concepts>
#include <string>
#include <string_view>
#include <type_traits>

namespace nanovllm {

/// The texts or whole numbers of a list, with the separator between them. fmt::join() would compile
/// fmt's formatting of texts in every source that uses it.
template <class List>
std::string join(const List& values, std::string_view separator) {
  std::string text;
  bool is_first = true;
  for (const auto& value : values) {
    if (!is_first) text += separator;
    is_first = false;
    if constexpr (std::integral<std::remove_cvref_t<decltype(value)>>)
      text += std::to_string(value);
    else text += value;
  }
  return text;
}

}  // namespace nanovllm
