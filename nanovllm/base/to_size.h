#pragma once

#include <concepts>
#include <cstddef>

namespace nanovllm {

/// A number that is not negative, as the standard library counts and indexes. Numbers are signed
/// everywhere else, so that differences of them are right.
constexpr size_t to_size(std::integral auto n) { return static_cast<size_t>(n); }

}  // namespace nanovllm
