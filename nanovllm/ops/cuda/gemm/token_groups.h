#pragma once

#include <cstdint>

namespace nanovllm::cuda {

/// The tokens [first, last) of a grouped GEMM: a part of one group, at most as many as a tile has.
struct TokenTile {
  int group, first, last;
};
/// The tiles of a grouped GEMM, in the device's memory: a kernel before it writes them.
struct TokenGroups {
  const TokenTile* tiles = nullptr;
  const int* num_tiles = nullptr;
  bool are_old = false;  ///< they were written before the previous kernel, which reads them too
};

}  // namespace nanovllm::cuda
