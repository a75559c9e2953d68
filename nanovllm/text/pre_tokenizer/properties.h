#pragma once

#include <string>
#include <string_view>

namespace nanovllm {

// What Oniguruma's shorthands and properties mean, as items of a character class of PCRE2.

inline constexpr std::string_view kSpaceItems = R"(\t-\r\x{85}\p{Z})";  // White_Space
inline constexpr std::string_view kWordItems = R"(\p{Alphabetic}\p{M}\p{Nd}\p{Pc})";
// Outside of a set, \w and \b take the superscripts and fractions of Latin-1, too.
inline constexpr std::string_view kMoreWordItems = R"(\x{B2}\x{B3}\x{B9}\x{BC}-\x{BE})";
inline constexpr std::string_view kDigitItems = R"(\p{Nd})";
inline constexpr std::string_view kHexDigitItems = "0-9A-Fa-f";

/// The items of \p{name}; empty if there is no such property.
std::string property_items(std::string_view name);
/// The items of [:name:]; empty if there is no such bracket.
std::string_view posix_items(std::string_view name);
/// Whether letters of one case have the property and those of another case do not.
bool depends_on_case(std::string_view name);

}  // namespace nanovllm
