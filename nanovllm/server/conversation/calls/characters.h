#pragma once

#include <string_view>

namespace nanovllm::server {

inline constexpr std::string_view kSpaces = " \t\r\n";

inline bool is_one_of(std::string_view characters, char c) {
  return characters.find(c) != std::string_view::npos;
}
inline bool is_space(char c) { return is_one_of(kSpaces, c); }
inline bool is_digit(char c) { return c >= '0' && c <= '9'; }
/// Whether the name of a function may have the character.
inline bool is_in_name(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || is_digit(c) || is_one_of("_-.", c);
}

}  // namespace nanovllm::server
