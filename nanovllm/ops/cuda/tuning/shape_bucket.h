#pragma once

#include <bit>
#include <cstdint>
#include <functional>
#include <set>

// Numbers of tokens T form buckets that share the choice of a GEMM's kernel, because autotuning for
// each T would take seconds. A choice is measured with the largest T of its bucket, since a tile
// that is just large enough for a smaller T would need two tiles for the largest one.
namespace nanovllm::cuda {

/// A GEMM of many tokens may be faster in pieces of this many.
inline constexpr int64_t kPieceTokens = 2048;

/// The largest T of the bucket of `num_tokens`. Up to 256 tokens, the largest tile, every size of a
/// graph (padded_rows()) has its own bucket. Then there are four buckets for each doubling of T,
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

/// The largest T of every bucket of up to `max_tokens` tokens, in descending order; that of the
/// last bucket is max_tokens.
inline std::set<int64_t, std::greater<>> bucket_sizes(int64_t max_tokens) {
  std::set<int64_t, std::greater<>> sizes = {max_tokens};
  for (int64_t size = 1; size < max_tokens; size = largest_in_bucket(size + 1)) sizes.insert(size);
  return sizes;
}

}  // namespace nanovllm::cuda
