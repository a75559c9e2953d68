#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

namespace nanovllm {

/// How many characters must be inserted, deleted, replaced or exchanged with their neighbour to
/// turn `a` into `b` (the optimal string alignment distance).
size_t edit_distance(std::string_view a, std::string_view b);

/// The name in `known` that a user who wrote `given` most likely meant: one that begins with it, or
/// one that differs in few places. Case does not count, and neither does a dash instead of an
/// underscore. Empty if no name is near.
std::string_view nearest_name(std::string_view given, std::span<const std::string> known);

/// "; did you mean 'NAME'?" for the end of an error message, or nothing if no name is near.
std::string did_you_mean(std::string_view given, std::span<const std::string> known);

}  // namespace nanovllm
