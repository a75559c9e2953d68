#pragma once

#include <cstdint>

namespace nanovllm {

/// The number of a rank, and how many ranks the engine has.
struct Rank {
  int index = 0;
  int world = 1;  ///< how many there are
};

/// Elements [first, first + count).
struct Range {
  int64_t first = 0, count = 0;
};

/// The part of `total` elements that a rank gets. The elements are divided in units of `unit`; the
/// parts follow each other in the order of the ranks and differ by at most one unit. If the last
/// unit is incomplete, the last rank has it.
Range share(int64_t total, int64_t unit, Rank rank);

/// The unit in which the vocabulary and the MLP's columns are divided. It suits the tiles of every
/// kernel, and it is a multiple of 4, because the sampler draws the noise of four ids with one
/// Philox counter.
inline constexpr int64_t kShareUnit = 16;

}  // namespace nanovllm
