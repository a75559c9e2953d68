#pragma once

#include "nanovllm/ops/cuda/sampling/sampler.cuh"

// Passes of a thread block over a row of logits, and the filters min_p, top_k and top_p. To find
// the worst token that a filter keeps, the thread block builds a histogram of how far values are
// below the best one. The number of tokens and their weight in each bin tell in which bin the worst
// token is, and only that bin's tokens are sorted. If they are too many, because of many equal
// values, a radix select finds the token instead.
namespace nanovllm::cuda::filters {

inline constexpr int kThreads = 1024;

/// The worst token that may be drawn: the ordered() of its value, and its id.
struct Worst {
  uint32_t value = 0;
  int32_t id = 0x7fffffff;
  __device__ bool keeps(uint32_t v, int32_t i) const {
    return v > value || (v == value && i <= id);
  }
};

inline constexpr int kBins = 512, kBinsPerUnit = 16;  // 16 bins for each factor e of weight
inline constexpr int kMaxSorted = 2048;

/// Counts and sums of 42-bit weights. A weight is added in three parts of 14 bits, because shared
/// memory adds 32 bits ten times faster than 64.
struct Histogram {
  uint32_t count[kBins], low[kBins], middle[kBins], high[kBins];

  __device__ void add(int bin, unsigned long long weight) {
    atomicAdd(&count[bin], 1u);
    if (weight == 0) return;
    atomicAdd(&low[bin], static_cast<uint32_t>(weight & 0x3fff));
    atomicAdd(&middle[bin], static_cast<uint32_t>(weight >> 14 & 0x3fff));
    atomicAdd(&high[bin], static_cast<uint32_t>(weight >> 28));
  }
  __device__ unsigned long long weight(int bin) const {
    return low[bin] + (static_cast<unsigned long long>(middle[bin]) << 14) +
           (static_cast<unsigned long long>(high[bin]) << 28);
  }
};

/// What a thread block keeps in shared memory.
struct Shared {
  union {
    unsigned long long digits[256];
    unsigned long long sorted[kMaxSorted];  // token_key() of value and id
  };
  Histogram histogram;
  unsigned long long sums[32];
  unsigned long long rest;
  uint32_t digit;
  int num_sorted;
};

/// A row, and the passes of a thread block over it.
class Row {
 public:
  __device__ Row(const float* logits, int vocab, Shared& shared)
      : logits_(logits), vocab_(vocab), shared_(shared) {}

  template <class Body>
  __device__ void for_each(Body body) const {
    for (int id = threadIdx.x; id < vocab_; id += kThreads) body(id, logits_[id]);
  }
  /// Returns RowFlags; `best` becomes the token_key() of the largest logit.
  __device__ int scan(unsigned long long& best) const {
    int flags = 0;
    best = 0;
    for_each([&](int id, float x) {
      flags |= flags_of(x);
      if (x > -INFINITY) best = max(best, token_key(x, id));
    });
    const int bad = __syncthreads_or(flags & kRowBad);
    const int finite = __syncthreads_or(flags & kRowHasFinite);
    best = largest(best);
    return (bad ? kRowBad : 0) | (finite ? kRowHasFinite : 0);
  }
  /// Radix select over the tokens for which taken(id, logit) is true. Returns the largest x such
  /// that the sum of amount(id, logit) over the tokens with key(id, logit) >= x is at least
  /// `target`; 0 if there is none. `target` becomes the share of it that the tokens with key == x
  /// must contribute.
  template <class Taken, class Key, class Amount>
  __device__ uint32_t select(unsigned long long& target, Taken taken, Key key, Amount amount) {
    uint32_t prefix = 0;
    for (int shift = 24; shift >= 0; shift -= 8) {
      __syncthreads();
      if (threadIdx.x < 256) shared_.digits[threadIdx.x] = 0;
      __syncthreads();
      for_each([&](int id, float x) {
        if (!taken(id, x)) return;
        const uint32_t k = key(id, x);
        if (shift == 24 || k >> (shift + 8) == prefix >> (shift + 8))
          atomicAdd(&shared_.digits[k >> shift & 255], amount(id, x));
      });
      __syncthreads();
      if (threadIdx.x == 0) {
        unsigned long long above = 0;
        int digit = 255;
        while (digit > 0 && above + shared_.digits[digit] < target)
          above += shared_.digits[digit--];
        shared_.digit = static_cast<uint32_t>(digit);
        shared_.rest = target > above ? target - above : 0;
      }
      __syncthreads();
      prefix |= shared_.digit << shift;
      target = shared_.rest;
    }
    return prefix;
  }
  /// The worst kept token if, of the tokens with value `value`, only the `count` with the lowest
  /// ids are kept.
  template <class Taken>
  __device__ Worst keep_ties(uint32_t value, unsigned long long count, Taken has_value) {
    unsigned long long num_ties = 0;
    for_each([&](int id, float x) { num_ties += has_value(id, x) ? 1 : 0; });
    num_ties = total(num_ties);
    if (count >= num_ties) return {value, 0x7fffffff};
    const uint32_t id = select(
        count, has_value, [](int i, float) { return ~static_cast<uint32_t>(i); },
        [](int, float) { return 1ull; });
    return {value, static_cast<int32_t>(~id)};
  }
  /// Sum and maximum over the thread block.
  __device__ unsigned long long total(unsigned long long x) const { return reduce(x, Sum()); }
  __device__ unsigned long long largest(unsigned long long x) const { return reduce(x, Max()); }

 private:
  template <class Combine>
  __device__ unsigned long long reduce(unsigned long long x, Combine combine) const {
    __syncthreads();  // all threads have read the result of the reduction before
    return block_reduce(x, shared_.sums, combine);
  }

  const float* logits_;
  int vocab_;
  Shared& shared_;
};

/// The tokens that min_p, top_k and top_p keep. Every thread has the same state.
class KeptTokens {
 public:
  __device__ KeptTokens(Row& row, Shared& shared, float scale, float best, float at_least)
      : row_(row), shared_(shared), scale_(scale), best_(best) {
    worst_.value = ordered(at_least);
  }
  __device__ bool kept(int id, float x) const {
    return x > -INFINITY && worst_.keeps(ordered(value(x)), id);
  }
  __device__ float value(float x) const { return __fmul_rn(x, scale_); }

  __device__ void fill_histogram() {
    for (int i = threadIdx.x; i < kBins * 4; i += kThreads) (&shared_.histogram.count[0])[i] = 0;
    __syncthreads();
    row_.for_each([&](int id, float x) {
      if (kept(id, x)) shared_.histogram.add(bin(x), weight(x));
    });
    __syncthreads();
  }
  /// Keeps the best `count`, or all if there are fewer.
  __device__ void keep_count(unsigned long long count) {
    keep(
        count, [&](int bin) { return static_cast<unsigned long long>(histogram().count[bin]); },
        [](float) { return 1ull; });
  }
  /// Keeps the fewest best tokens whose weight reaches this share of the weight of all kept tokens.
  __device__ void keep_share(float share) {
    unsigned long long all = 0;
    row_.for_each([&](int id, float x) { all += kept(id, x) ? weight(x) : 0; });
    const auto target = static_cast<unsigned long long>(
        ceil(static_cast<double>(share) * static_cast<double>(row_.total(all))));
    keep(
        target, [&](int bin) { return histogram().weight(bin); },
        [&](float v) { return weight_of(__fadd_rn(v, -best_)); });
  }

 private:
  __device__ const Histogram& histogram() const { return shared_.histogram; }
  __device__ unsigned long long weight(float x) const {
    return weight_of(__fadd_rn(value(x), -best_));
  }
  __device__ int bin(float x) const {
    return static_cast<int>(fminf((best_ - value(x)) * kBinsPerUnit, kBins - 1.0f));
  }

  /// Keeps the fewest best tokens whose amount together reaches `target`.
  template <class OfBin, class OfValue>
  __device__ void keep(unsigned long long target, OfBin of_bin, OfValue of_value) {
    __syncthreads();
    if (threadIdx.x == 0) {
      unsigned long long above = 0;
      int at = 0;
      while (at < kBins - 1 && above + of_bin(at) < target) above += of_bin(at++);
      shared_.digit = static_cast<uint32_t>(at);
      shared_.rest = target > above ? target - above : 0;
      shared_.num_sorted = 0;
    }
    __syncthreads();
    const int at = static_cast<int>(shared_.digit);
    unsigned long long rest = shared_.rest;
    if (histogram().count[at] > kMaxSorted) return keep_by_select(target, of_value);
    row_.for_each([&](int id, float x) {
      if (kept(id, x) && bin(x) == at)
        shared_.sorted[atomicAdd(&shared_.num_sorted, 1)] = token_key(value(x), id);
    });
    __syncthreads();
    const int count = shared_.num_sorted;
    sort(count);
    if (threadIdx.x == 0) {
      int last = 0;
      while (last + 1 < count) {
        const unsigned long long amount = of_value(score_of(shared_.sorted[last]));
        if (amount >= rest) break;
        rest -= amount;
        ++last;
      }
      shared_.rest = count > 0 ? shared_.sorted[last] : 0;
    }
    __syncthreads();
    // With nothing in the bin, all tokens together have less than the target, and all stay.
    if (count > 0) worst_ = {static_cast<uint32_t>(shared_.rest >> 32), id_of(shared_.rest)};
  }
  /// Sorts the bin's tokens, best first: a bitonic sort over the next power of two.
  __device__ void sort(int count) {
    int size = 1;
    while (size < count) size *= 2;
    for (int i = count + static_cast<int>(threadIdx.x); i < size; i += kThreads)
      shared_.sorted[i] = 0;
    for (int run = 2; run <= size; run *= 2)
      for (int step = run / 2; step > 0; step /= 2) {
        __syncthreads();
        for (int i = threadIdx.x; i < size / 2; i += kThreads) {
          const int low = i / step * 2 * step + i % step, high = low + step;
          const unsigned long long a = shared_.sorted[low], b = shared_.sorted[high];
          if ((a < b) == ((low & run) == 0)) {
            shared_.sorted[low] = b;
            shared_.sorted[high] = a;
          }
        }
      }
    __syncthreads();
  }
  template <class OfValue>
  __device__ void keep_by_select(unsigned long long target, OfValue of_value) {
    const auto keeps = [&](int id, float x) { return kept(id, x); };
    const uint32_t at = row_.select(
        target, keeps, [&](int, float x) { return ordered(value(x)); },
        [&](int, float x) { return of_value(value(x)); });
    const unsigned long long each = of_value(from_ordered(at));
    const unsigned long long count = each == 0 ? 1 : max(1ull, (target + each - 1) / each);
    worst_ = row_.keep_ties(
        at, count, [&](int id, float x) { return kept(id, x) && ordered(value(x)) == at; });
  }

  Row& row_;
  Shared& shared_;
  float scale_, best_;
  Worst worst_;
};

}  // namespace nanovllm::cuda::filters
