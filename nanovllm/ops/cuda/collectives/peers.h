#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace nanovllm::cuda {

inline constexpr int kMaxPeers = 8;
/// The most bytes of the pairs of one exchange (pairs.cuh).
inline constexpr size_t kPairsBytes = size_t{512} << 10;

/// The kernels' view of the ranks: the exchange buffer of each, mapped into this process.
struct Peers {
  std::array<char*, kMaxPeers> buffers = {};
  int rank = 0, world = 1;
  size_t pairs_at = 0;                ///< where the pairs of pairs.cuh begin in a buffer
  const uint32_t* aborted = nullptr;  ///< in host memory; not 0 once a rank has died
  /// [0] counts this rank's exchanges and is the same on all ranks; [1] counts the thread blocks
  /// that have finished the current exchange.
  uint32_t* epoch = nullptr;
};

}  // namespace nanovllm::cuda
