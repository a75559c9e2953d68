#pragma once

#include <bit>
#include <cstdint>

// Which numbers of tokens T share the choice of a GEMM's kernel: autotuning for each T would take
// seconds. The candidates (gemms.cpp) must be the same for all T of a bucket.
namespace nanovllm::cuda {

/// Tokens of a piece, where a large GEMM is faster in pieces.
inline constexpr int64_t kPieceTokens = 2048;

/// The largest T of this one's bucket. Up to 256 tokens, which one tile may hold, every size of a
/// graph (cuda_steps.cpp) has its own bucket; then there are four to each doubling, and one where
/// pieces are measured too.
constexpr int64_t largest_like(int64_t num_tokens) {
  const auto bits = static_cast<uint64_t>(num_tokens);
  if (num_tokens <= 8 || num_tokens > kPieceTokens)
    return static_cast<int64_t>(std::bit_ceil(bits));
  if (num_tokens <= 256) return (num_tokens + 15) / 16 * 16;
  // Multiples of a quarter of the power of two below.
  const int shift = std::bit_width(bits - 1) - 3;
  return (((num_tokens - 1) >> shift) + 1) << shift;
}

/// Whether to measure again what was measured with `measured` tokens (0: never): a tile that just
/// holds those tokens may not hold the largest T of the bucket.
constexpr bool is_stale(int64_t measured, int64_t num_tokens) {
  return measured == 0 || (measured < num_tokens && num_tokens == largest_like(num_tokens));
}

}  // namespace nanovllm::cuda
