#pragma once

#include "nanovllm/ops/cuda/device/device.cuh"
#include "nanovllm/ops/cuda/sampling/sampler.h"

// The code that the sampler's kernels share: noise, scores, and the end of a row. A token's score
// is its logit / temperature plus Gumbel noise, and the token with the highest score is drawn.
// ops/sample_row.h defines the arithmetic; where it rounds each operation, the compiler must not
// contract two into an FMA, hence the intrinsics __fmul_rn and __fadd_rn.
namespace nanovllm::cuda {

constexpr float kGreedyTemperature = 1e-5f;

// -- noise

/// Four random words for each counter c and key. Source: Salmon, Moraes, Dror and Shaw, "Parallel
/// Random Numbers: As Easy as 1, 2, 3", SC 2011.
__device__ inline uint4 philox4x32_10(uint4 c, uint32_t key0, uint32_t key1) {
#pragma unroll
  for (int round = 0; round < 10; ++round) {
    const uint32_t high0 = __umulhi(c.x, 0xd2511f53), low0 = c.x * 0xd2511f53;
    const uint32_t high1 = __umulhi(c.z, 0xcd9e8d57), low1 = c.z * 0xcd9e8d57;
    c = make_uint4(high1 ^ c.y ^ key0, low1, high0 ^ c.w ^ key1, low0);
    key0 += 0x9e3779b9;
    key1 += 0xbb67ae85;
  }
  return c;
}

/// The random words of the tokens id .. id + 3; `id` is a multiple of four.
__device__ inline uint4 noise_words(const RowParams& row, int32_t id) {
  return philox4x32_10(make_uint4(static_cast<uint32_t>(id) / 4, row.position, row.choice, 0),
                       static_cast<uint32_t>(row.seed), static_cast<uint32_t>(row.seed >> 32));
}

/// -log(-log1p(-u)), u = (x + 0.5) / 2^32, in double precision.
__device__ inline float exact_noise(uint32_t x) {
  const double u = (x + 0.5) * 0x1p-32;
  return static_cast<float>(-log(-log1p(-u)));
}
/// log(x) for normal numbers above zero.
__device__ inline float fast_log(float x) {
  float y;
  asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y * 0.693147181f;
}
/// The largest error of approx_noise().
constexpr float kNoiseError = 5e-4f;
/// An approximation of exact_noise() with the fast logarithm.
__device__ inline float approx_noise(uint32_t x) {
  const float u = (static_cast<float>(x) + 0.5f) * 0x1p-32f;
  const float rest = (static_cast<float>(~x) + 0.5f) * 0x1p-32f;  // 1 - u
  const float e = u < 0.01f ? u * (1 + u * (0.5f + u * (1 / 3.0f))) : -fast_log(rest);
  return -fast_log(e);
}

/// An upper bound of exact_noise(): -log1p(-u) > u. It is close where x is small and so the noise
/// large.
__device__ inline float noise_bound(uint32_t x) {
  return 32 * 0.693147181f - fast_log(static_cast<float>(x) + 0.5f);
}

// -- scores and ids as ordered numbers

/// A token as one number: the larger number has the higher score or, if scores are equal, the lower
/// id.
__device__ inline unsigned long long token_key(float score, int32_t id) {
  return static_cast<unsigned long long>(ordered(score)) << 32 | (0xffffffff - id);
}
__device__ inline int32_t id_of(unsigned long long key) {
  return static_cast<int32_t>(0xffffffff - static_cast<uint32_t>(key));
}
__device__ inline float score_of(unsigned long long key) {
  return from_ordered(static_cast<uint32_t>(key >> 32));
}

/// Reads a score from shared memory, where other threads change it. It is stored as ordered().
__device__ inline float shared_score(uint32_t at) {
  uint32_t seen;
  asm volatile("ld.volatile.shared.u32 %0, [%1];" : "=r"(seen) : "r"(at));
  return from_ordered(seen);
}

/// The token with the highest score among those that one thread has seen. Exact noise takes a
/// hundred instructions in double precision, so it is computed only where approximate scores cannot
/// tell two tokens apart.
class BestToken {
 public:
  /// Whether a token with the approximate score `approx` can be the best if another one has
  /// `floor`.
  __device__ static bool may_win(float floor, float approx) {
    return approx >= floor - margin(floor);
  }
  /// Whether a token can be the best if another one has `floor`, asked before its noise is computed
  /// from `word`.
  __device__ static bool may_beat(float floor, float value, uint32_t word) {
    return may_win(floor, value + noise_bound(word));
  }
  /// Whether any of four logits may_beat() the floor, by the highest logit and the highest noise,
  /// which the lowest word gives.
  __device__ static bool any_may_beat(float floor, const float* x, float scale,
                                      const uint32_t* words) {
    const float value = fmaxf(fmaxf(x[0], x[1]), fmaxf(x[2], x[3]));
    const uint32_t lowest = min(min(words[0], words[1]), min(words[2], words[3]));
    return may_beat(floor, __fmul_rn(value, scale), lowest);
  }
  __device__ void add(float value, uint32_t word, int32_t id) {
    if (!may_beat(approx_, value, word)) return;
    const float score = value + approx_noise(word);
    if (!may_win(approx_, score)) return;
    if (score <= approx_ + margin(approx_)) {
      const unsigned long long mine = exact_key(value, word, id), best = key();
      if (mine < best) return;
    }
    approx_ = score;
    value_ = value;
    word_ = word;
    id_ = id;
  }
  __device__ float approx() const { return approx_; }
  __device__ float value() const { return value_; }
  /// token_key() with the exact score; 0 if there was no token.
  __device__ unsigned long long key() const { return id_ < 0 ? 0 : exact_key(value_, word_, id_); }

 private:
  /// How far apart two approximate scores may be although the exact scores have the opposite order:
  /// the errors of both noises, and rounding.
  __device__ static float margin(float score) { return 2 * kNoiseError + fabsf(score) * 0x1p-21f; }
  __device__ static unsigned long long exact_key(float value, uint32_t word, int32_t id) {
    return token_key(__fadd_rn(value, exact_noise(word)), id);
  }
  float approx_ = -INFINITY, value_ = 0;
  uint32_t word_ = 0;
  int32_t id_ = -1;
};

// -- weights of filters

/// e^x for x <= 0, with the operations of ops/cpu's sampler and so the same bits.
__device__ inline float exp_nonpositive(float x) {
  x = x > -60.0f ? x : -60.0f;
  const auto mul = [](float a, float b) { return __fmul_rn(a, b); };
  const auto add = [](float a, float b) { return __fadd_rn(a, b); };
  const float shifted = add(mul(x, kLog2e), 12582912.0f);
  const float n = add(shifted, -12582912.0f);
  const float r = add(add(x, -mul(n, 0.693359375f)), mul(n, 2.12194440e-4f));
  float p = add(mul(r, 1.0f / 5040), 1.0f / 720);
  p = add(mul(p, r), 1.0f / 120);
  p = add(mul(p, r), 1.0f / 24);
  p = add(mul(p, r), 1.0f / 6);
  p = add(mul(p, r), 0.5f);
  p = add(add(mul(p, mul(r, r)), r), 1.0f);
  return __uint_as_float(__float_as_uint(p) + (__float_as_uint(shifted) << 23));
}
/// The integer nearest to 2^40 e^x. Sums of integers are exact in any order.
__device__ inline unsigned long long weight_of(float x) {
  return __float2ull_rn(__fmul_rn(exp_nonpositive(x), 0x1p40f));
}

// -- the end of a row

/// What a pass over a row has found: kRowBad for NaN or +infinity, kRowHasFinite for a finite
/// logit.
enum RowFlag : int { kRowBad = 1, kRowHasFinite = 2 };
__device__ inline int flags_of(float logit) {
  return logit < INFINITY ? (logit > -INFINITY ? kRowHasFinite : 0) : kRowBad;
}

// A FoundRow is a token_key() with the row's flags in bits 30 and 31, which are 1 in the key of
// every id below 2^30 - 1.
constexpr unsigned long long kIdBits = 0x3fffffff;
__device__ inline FoundRow found_row(unsigned long long key, int flags) {
  return (key & ~(3ull << 30)) | static_cast<unsigned long long>(flags) << 30;
}
__device__ inline int flags_of_found(FoundRow found) { return static_cast<int>(found >> 30 & 3); }
/// The token_key() in a FoundRow; 0 if there is no token.
__device__ inline unsigned long long key_of_found(FoundRow found) {
  return (found & kIdBits) == 0 ? 0 : found | 3ull << 30;
}

/// Writes the row's token, whose token_key() is `best`.
__device__ inline void finish_row(const SampleParams& p, int row, unsigned long long best,
                                  int flags) {
  const bool ok = flags == kRowHasFinite && best != 0;
  const DrawnRow drawn = {ok ? id_of(best) : 0, ok ? 0 : 1};
  (*p.drawn)[row] = drawn;
  if (p.rows[row].slot >= 0) p.last_tokens[p.rows[row].slot] = drawn.token;
}

/// Ends a plain row: writes its token or, with several ranks, what this rank has found.
__device__ inline void end_plain_row(const SampleParams& p, int row, unsigned long long best,
                                     int flags) {
  if (p.found != nullptr) p.found[row] = found_row(best, flags);
  else finish_row(p, row, best, flags);
}

}  // namespace nanovllm::cuda
