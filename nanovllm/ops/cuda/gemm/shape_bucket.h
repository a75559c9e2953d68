#pragma once

#include <bit>
#include <cstdint>

// Numbers of tokens T form buckets that share the choice of a GEMM's kernel, because autotuning for
// each T would take seconds. The candidates (gemms.cpp) must be the same for all T of a bucket.
namespace nanovllm::cuda {

/// A GEMM of many tokens may be faster in pieces of this many.
inline constexpr int64_t kPieceTokens = 2048;

/// The largest T of the bucket of `num_tokens`. Up to 256 tokens, the largest tile, every size of a
/// graph (cuda_steps.cpp) has its own bucket. Then there are four buckets for each doubling of T,
/// and above kPieceTokens one.
constexpr int64_t largest_in_bucket(int64_t num_tokens) {
  const auto bits = static_cast<uint64_t>(num_tokens);
  if (num_tokens <= 8 || num_tokens > kPieceTokens)
    return static_cast<int64_t>(std::bit_ceil(bits));
  if (num_tokens <= 256) return (num_tokens + 15) / 16 * 16;
  // Multiples of a quarter of the power of two below.
  const int shift = std::bit_width(bits - 1) - 3;
  return (((num_tokens - 1) >> shift) + 1) << shift;
}

/// Whether to measure again for `num_tokens` what was measured with `measured` tokens (0: never). A
/// bucket is measured again with its largest T, because the tile that just holds fewer tokens may
/// not hold these.
constexpr bool is_stale(int64_t measured, int64_t num_tokens) {
  return measured == 0 || (measured < num_tokens && num_tokens == largest_in_bucket(num_tokens));
}

}  // namespace nanovllm::cuda
