#pragma once

#include <bit>
#include <cstdint>

// How far what is measured for a product of T tokens serves others: measuring each T would take
// seconds. What chooses among ways to compute it (cuda_products.cpp) must know the same ones for
// all T that share a choice.
namespace nanovllm::cuda {

/// Tokens of a piece, where many do better in pieces.
inline constexpr int64_t kPieceTokens = 2048;

/// The largest T that shares a choice with this one: those of graphs (cuda_steps.cpp) as far as a
/// tile of an algorithm may hold them all, then a few to each doubling, one where pieces are
/// measured too.
constexpr int64_t largest_like(int64_t num_tokens) {
  const auto bits = static_cast<uint64_t>(num_tokens);
  if (num_tokens <= 8 || num_tokens > kPieceTokens)
    return static_cast<int64_t>(std::bit_ceil(bits));
  if (num_tokens <= 256) return (num_tokens + 15) / 16 * 16;
  // Multiples of a quarter of the power of two below.
  const int shift = std::bit_width(bits - 1) - 3;
  return (((num_tokens - 1) >> shift) + 1) << shift;
}

/// Whether to choose anew what was measured with `measured` tokens (0: not): a tile that just holds
/// them may not hold the largest T of those that share the choice.
constexpr bool is_stale(int64_t measured, int64_t num_tokens) {
  return measured == 0 || (measured < num_tokens && num_tokens == largest_like(num_tokens));
}

}  // namespace nanovllm::cuda
