#pragma once

#include "nanovllm/ops/cuda/device/device.cuh"
#include "nanovllm/ops/cuda/sampling/sampler.h"

// What the sampler's kernels share. ops/cpu/sampler.h defines the rule; products and sums that it
// rounds one by one must not be contracted, hence the intrinsics.
namespace nanovllm::cuda {

constexpr float kGreedyTemperature = 1e-5f;

/// Source: Salmon, Moraes, Dror and Shaw, "Parallel Random Numbers: As Easy as 1, 2, 3", SC 2011.
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

/// The words that the noise of four neighbouring tokens is made of; `id` is a multiple of four.
__device__ inline uint4 noise_words(const RowParams& row, int32_t id) {
  return philox4x32_10(make_uint4(static_cast<uint32_t>(id) / 4, row.position, row.choice, 0),
                       row.key[0], row.key[1]);
}

/// -log(-log1p(-u)), u = (x + 0.5) / 2^32, as the rule has it.
__device__ inline float exact_noise(uint32_t x) {
  const double u = (x + 0.5) * 0x1p-32;
  return static_cast<float>(-log(-log1p(-u)));
}
/// Of normal numbers above zero.
__device__ inline float fast_log(float x) {
  float y;
  asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y * 0.693147181f;
}
/// The same with an error below kNoiseError, by the fast logarithm.
constexpr float kNoiseError = 5e-4f;
__device__ inline float near_noise(uint32_t x) {
  const float u = (static_cast<float>(x) + 0.5f) * 0x1p-32f;
  const float rest = (static_cast<float>(~x) + 0.5f) * 0x1p-32f;  // 1 - u
  const float e = u < 0.01f ? u * (1 + u * (0.5f + u * (1 / 3.0f))) : -fast_log(rest);
  return -fast_log(e);
}

/// Above the noise of x by little where x is small, where noise is large: -log1p(-u) is more than
/// u.
__device__ inline float noise_bound(uint32_t x) {
  return 32 * 0.693147181f - fast_log(static_cast<float>(x) + 0.5f);
}

/// Orders floats as unsigned numbers.
__device__ inline uint32_t ordered(float x) {
  const uint32_t bits = __float_as_uint(x + 0.0f);  // -0 becomes 0
  return bits & 0x80000000 ? ~bits : bits | 0x80000000;
}
__device__ inline float from_ordered(uint32_t x) {
  return __uint_as_float(x & 0x80000000 ? x & 0x7fffffff : ~x);
}
/// The higher score, then the lower id.
__device__ inline unsigned long long rank_of(float score, int32_t id) {
  return static_cast<unsigned long long>(ordered(score)) << 32 | (0xffffffff - id);
}
__device__ inline int32_t id_of(unsigned long long rank) {
  return static_cast<int32_t>(0xffffffff - static_cast<uint32_t>(rank));
}

/// The best of the tokens that one thread has seen. Exact noise takes a hundred instructions of
/// double precision; only tokens that the fast one cannot tell apart get it.
class BestToken {
 public:
  /// Whether a token of this near score can be the best where another has `floor`.
  __device__ static bool may_win(float floor, float near) { return near >= floor - margin(floor); }
  /// The same of a token whose score is not known yet.
  __device__ static bool may_beat(float floor, float value, uint32_t word) {
    return may_win(floor, value + noise_bound(word));
  }
  /// The same of any of four logits: of the best with the highest noise, the lowest word's.
  __device__ static bool any_may_beat(float floor, const float* x, float scale,
                                      const uint32_t* words) {
    const float value = fmaxf(fmaxf(x[0], x[1]), fmaxf(x[2], x[3]));
    const uint32_t lowest = min(min(words[0], words[1]), min(words[2], words[3]));
    return may_beat(floor, __fmul_rn(value, scale), lowest);
  }
  __device__ void add(float value, uint32_t word, int32_t id) {
    if (!may_beat(near_, value, word)) return;
    const float score = value + near_noise(word);
    if (!may_win(near_, score)) return;
    if (score <= near_ + margin(near_)) {
      const unsigned long long mine = exact(value, word, id), best = rank();
      if (mine < best) return;
    }
    near_ = score;
    value_ = value;
    word_ = word;
    id_ = id;
  }
  __device__ float near() const { return near_; }
  /// Of the exact score; 0 where there was no token.
  __device__ unsigned long long rank() const { return id_ < 0 ? 0 : exact(value_, word_, id_); }

 private:
  /// By how much two scores may differ whose exact ones are in the other order: by their noise's
  /// errors and their rounding.
  __device__ static float margin(float score) { return 2 * kNoiseError + fabsf(score) * 0x1p-21f; }
  __device__ static unsigned long long exact(float value, uint32_t word, int32_t id) {
    return rank_of(__fadd_rn(value, exact_noise(word)), id);
  }
  float near_ = -INFINITY, value_ = 0;
  uint32_t word_ = 0;
  int32_t id_ = -1;
};

/// The largest over a block of whole warps, in every thread; `shared` holds 32.
__device__ inline unsigned long long block_max(unsigned long long x, unsigned long long* shared) {
#pragma unroll
  for (int i = 16; i > 0; i /= 2) x = max(x, __shfl_xor_sync(0xffffffff, x, i));
  __syncthreads();
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = x;
  __syncthreads();
  x = threadIdx.x % 32 < blockDim.x / 32 ? shared[threadIdx.x % 32] : 0;
#pragma unroll
  for (int i = 16; i > 0; i /= 2) x = max(x, __shfl_xor_sync(0xffffffff, x, i));
  return x;
}
/// The sum, likewise.
__device__ inline unsigned long long block_total(unsigned long long x, unsigned long long* shared) {
#pragma unroll
  for (int i = 16; i > 0; i /= 2) x += __shfl_xor_sync(0xffffffff, x, i);
  __syncthreads();
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = x;
  __syncthreads();
  x = threadIdx.x % 32 < blockDim.x / 32 ? shared[threadIdx.x % 32] : 0;
#pragma unroll
  for (int i = 16; i > 0; i /= 2) x += __shfl_xor_sync(0xffffffff, x, i);
  return x;
}

/// e^x for x <= 0 with ops/cpu's reduction, product by product: the same bits.
__device__ inline float exp_nonpositive(float x) {
  x = x > -60.0f ? x : -60.0f;
  const auto mul = [](float a, float b) { return __fmul_rn(a, b); };
  const auto add = [](float a, float b) { return __fadd_rn(a, b); };
  const float shifted = add(mul(x, 1.44269504f), 12582912.0f);
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
/// The integer nearest to 2^40 e^x.
__device__ inline unsigned long long weight_of(float x) {
  const double sum = static_cast<double>(exp_nonpositive(x)) + 0x1p12;
  return static_cast<unsigned long long>(__double_as_longlong(sum)) -
         static_cast<unsigned long long>(__double_as_longlong(0x1p12));
}

/// What passes over a row find wrong with it.
enum RowFlag : int { kRowBad = 1, kRowHasFinite = 2 };
__device__ inline int flags_of(float logit) {
  return logit < INFINITY ? (logit > -INFINITY ? kRowHasFinite : 0) : kRowBad;
}

// A FoundRow keeps the flags where an id has none of its bits.
constexpr unsigned long long kIdBits = 0x3fffffff;
__device__ inline FoundRow found_row(unsigned long long best, int flags) {
  return (best & ~(3ull << 30)) | static_cast<unsigned long long>(flags) << 30;
}
__device__ inline int flags_of_found(FoundRow found) { return static_cast<int>(found >> 30 & 3); }
/// 0 where there is no token: ids are below 2^30 - 1.
__device__ inline unsigned long long rank_of_found(FoundRow found) {
  return (found & kIdBits) == 0 ? 0 : found | 3ull << 30;
}

__device__ inline void finish_row(const SampleParams& p, int row, unsigned long long best,
                                  int flags) {
  const bool ok = flags == kRowHasFinite && best != 0;
  const DrawnRow drawn = {ok ? id_of(best) : 0, ok ? 0 : 1};
  (*p.drawn)[row] = drawn;
  if (p.rows[row].slot >= 0) p.last_tokens[p.rows[row].slot] = drawn.token;
}

/// Ends a plain row, or leaves what this rank found of it.
__device__ inline void end_plain_row(const SampleParams& p, int row, unsigned long long best,
                                     int flags) {
  if (p.found != nullptr) p.found[row] = found_row(best, flags);
  else finish_row(p, row, best, flags);
}

}  // namespace nanovllm::cuda
