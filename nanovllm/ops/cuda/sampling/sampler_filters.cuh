#pragma once

#include "nanovllm/ops/cuda/sampling/sampler_row.cuh"

// The filters over a Row, and drawing from what they keep.
//
// top_k lists the tokens that may be among the best k, few more than k, and sorts them. The rest of
// the work needs only the list, and so only the thread block that has it. top_p alone needs no
// order at all: a token is drawn from all that the other filters keep, and then the weight of the
// tokens better than it decides whether top_p keeps it. If top_p does not keep it, it keeps no
// worse token either, and one of the better tokens is drawn. The noise belongs to the token, so the
// result is the token that would be drawn from the kept ones alone. Source of the idea:
// FlashInfer's sampling by rejection (Ye et al., "FlashInfer", 2025), which draws anew each time.
namespace nanovllm::cuda::rows {

/// The worst token that may be drawn: worse tokens have a lower value, or the same value and a
/// larger id.
struct Worst {
  static constexpr int32_t kAnyId = 0x7fffffff;
  float value = 0;
  int32_t id = kAnyId;
  __device__ bool keeps(float v, int32_t i) const { return v > value || (v == value && i <= id); }
};

/// The tokens of a row that may be drawn. Every thread has the same state.
template <bool kClustered>
class KeptTokens {
 public:
  /// value = logit * scale; `best` is the best value, and values below `at_least` are not kept.
  __device__ KeptTokens(Row<kClustered>& row, Shared& shared, float scale, float best,
                        float at_least)
      : row_(row), shared_(shared), scale_(scale), best_(best), worst_{at_least} {}
  __device__ float value(float x) const { return __fmul_rn(x, scale_); }
  __device__ bool kept(int id, float x) const { return worst_.keeps(value(x), id); }

  /// Keeps the best `k`, or all if there are fewer. Returns whether the first part has them in
  /// shared.listed; then only the first part knows which tokens are kept.
  __device__ bool keep_count(int k) {
    const float bound = fmaxf(value(row_.bound_of_best(k)), worst_.value);
    const int count = row_.list(bound, [&](float x) { return value(x); });
    if (count > kMaxListed) {
      if (count > k) keep_amount(static_cast<unsigned long long>(k), [](float) { return 1ull; });
      return false;
    }
    num_listed_ = min(count, k);
    if (row_.is_first_part() && count >= k) {
      const unsigned long long last = shared_.listed[k - 1];
      worst_ = {score_of(last), id_of(last)};
    }
    return true;
  }
  /// Keeps the fewest best tokens whose weight reaches this share of the weight of all kept tokens.
  __device__ void keep_share(float share) {
    const auto weight = [&](float v) { return exact_weight(v); };
    unsigned long long all = 0;
    row_.for_each([&](int id, float x) { all += kept(id, x) ? weight(value(x)) : 0; });
    keep_amount(target(share, row_.total(all)), weight);
  }

  /// The token_key() of the kept token with the best score, if only the fewest best tokens whose
  /// weight reaches the share `top_p` of all may be drawn.
  __device__ unsigned long long draw(const RowParams& params) {
    const Worst all = worst_;
    for (;;) {
      const Drawn drawn = draw_once(params);
      if (params.top_p >= 1 || drawn.key == 0) return drawn.key;
      const Worst token = {drawn.value, id_of(drawn.key)};
      if (within_share(params.top_p, all, token)) return drawn.key;
      worst_ = {token.value, token.id - 1};
    }
  }
  /// Draws from the tokens that keep_count() has listed. Only the first part calls it.
  __device__ unsigned long long draw_listed(const RowParams& params) {
    // Each thread takes neighbouring tokens of the list, mostly one, since the list is rarely
    // longer than the number of threads.
    const int each = (num_listed_ + kThreads - 1) / kThreads;
    const int first = min(static_cast<int>(threadIdx.x) * each, num_listed_);
    const int last = min(first + each, num_listed_);
    const auto weight = [&](int i) { return exact_weight(score_of(shared_.listed[i])); };
    auto* const warps = reinterpret_cast<unsigned long long*>(shared_.warps);
    unsigned long long better = 0, wanted = ~0ull;
    if (params.top_p < 1) {
      unsigned long long sum = 0;
      for (int i = first; i < last; ++i) sum += weight(i);
      const Sums sums = block_sums(sum, warps);
      better = sums.before;
      wanted = target(params.top_p, sums.all);
    }
    unsigned long long best = 0;
    for (int i = first; i < last && better < wanted; ++i) {
      const unsigned long long key = shared_.listed[i];
      const int id = id_of(key);
      const uint4 words = noise_words(params, id / 4 * 4);
      const uint32_t low = id % 2 == 0 ? words.x : words.y, high = id % 2 == 0 ? words.z : words.w;
      const float score = __fadd_rn(score_of(key), exact_noise(id % 4 < 2 ? low : high));
      best = max(best, token_key(score, id));
      if (params.top_p < 1) better += weight(i);
    }
    return block_reduce(best, warps + kWarps, Max());  // block_sums() uses the other half
  }

 private:
  struct alignas(16) Drawn {
    unsigned long long key;  ///< token_key() of the score; 0: there is no token
    float value;
  };
  struct Sums {
    unsigned long long before, all;
  };
  __device__ static unsigned long long target(float share, unsigned long long weight) {
    return static_cast<unsigned long long>(
        ceil(static_cast<double>(share) * static_cast<double>(weight)));
  }
  __device__ unsigned long long exact_weight(float v) const {
    return weight_of(__fadd_rn(v, -best_));
  }
  /// The sum of x of the threads before this one in the thread block, and of all.
  __device__ static Sums block_sums(unsigned long long x, unsigned long long* warps) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    unsigned long long up_to = x;
#pragma unroll
    for (int distance = 1; distance < 32; distance *= 2) {
      const unsigned long long other = __shfl_up_sync(kAllLanes, up_to, distance);
      if (lane >= distance) up_to += other;
    }
    if (lane == 31) warps[warp] = up_to;
    __syncthreads();
    const unsigned long long of_warp = lane < kWarps ? warps[lane] : 0;
    return {warp_sum(lane < warp ? of_warp : 0) + up_to - x, warp_sum(of_warp)};
  }

  /// Whether `token` is among the fewest best tokens of `all` that reach this share of the weight.
  __device__ bool within_share(float share, const Worst& all, const Worst& token) {
    // Floats decide, unless they are so close that their errors might.
    if (all.id == Worst::kAnyId && fabsf(best_) < 0x1p24f) {
      constexpr double kError = 1e-4;
      const float4 sums = approximate_sums(all.value, token);
      const double reached = sums.y, wanted = static_cast<double>(share) * sums.x;
      if (reached < wanted * (1 - kError)) return true;
      if (reached > wanted * (1 + kError)) return false;
    }
    unsigned long long sum = 0, better = 0;
    row_.for_each([&](int id, float x) {
      const float v = value(x);
      if (!all.keeps(v, id)) return;
      const unsigned long long weight = exact_weight(v);
      sum += weight;
      if (token.keeps(v, id) && id != token.id) better += weight;
    });
    const ulonglong2 totals = row_.totals(sum, better);
    return totals.y < target(share, totals.x);
  }
  /// x is the weight of the tokens whose value is at least `at_least`, y that of the tokens better
  /// than `token`. Rounding makes all weights too large or too small by the same factor.
  __device__ float4 approximate_sums(float at_least, const Worst& token) {
    const float offset = -best_ * kLog2e;
    const auto weight = [&](float v) { return exp2_approx(__fmaf_rn(v, kLog2e, offset)); };
    float sum = 0, better = 0;
    // If values are equal, the tokens before `token` are better. So tokens before its group of four
    // are compared with its value, and others with the next larger one.
    const int group = token.id / 4 * 4;
    const float above = from_ordered(ordered(token.value) + 1);
    row_.for_each_four([&](int id, const float(&x)[4]) {
      const float bound = id < group ? token.value : above;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float v = value(x[i]), w = weight(v);
        if (v >= at_least) sum += w;
        if (v >= bound) better += w;
      }
    });
    row_.for_four(group, [&](int id, const float(&x)[4]) {
#pragma unroll
      for (int i = 0; i < 3; ++i)
        if (id + i < token.id && value(x[i]) == token.value) better += weight(token.value);
    });
    return row_.reduce(float4{sum, better, 0, 0}, [](float4 v) {
      return float4{warp_sum(v.x), warp_sum(v.y), 0, 0};
    });
  }

  __device__ Drawn draw_once(const RowParams& row_params) {
    const RowParams params = row_params;  // in registers
    uint32_t highest_at = shared_address(&shared_.highest);
    asm volatile("" : "+r"(highest_at));  // keeps the compiler from computing it for each group
    if (threadIdx.x == 0) shared_.highest = ordered(-INFINITY);
    __syncthreads();
    BestToken best;
    row_.for_each_four([&](int id, const float(&logits)[4]) {
      if (!(value(largest_of(logits)) >= worst_.value)) return;
      const uint4 words = noise_words(params, id);
      uint32_t word[4] = {words.x, words.y, words.z, words.w};
      const float floor = shared_score(highest_at);
      if (!BestToken::any_may_beat(floor, logits, scale_, word)) return;
      float x[4] = {logits[0], logits[1], logits[2], logits[3]};
#pragma unroll 1  // the loop is rarely entered, and its code is long
      for (int i = 0; i < 4; ++i) {
        if (kept(id + i, x[0]) && BestToken::may_beat(floor, value(x[0]), word[0]))
          best.add(value(x[0]), word[0], id + i);
#pragma unroll
        for (int j = 0; j < 3; ++j) x[j] = x[j + 1], word[j] = word[j + 1];
      }
      if (best.approx() > floor) atomicMax(&shared_.highest, ordered(best.approx()));
    });
    __syncthreads();
    const bool may_win = BestToken::may_win(from_ordered(shared_.highest), best.approx());
    return row_.reduce(Drawn{may_win ? best.key() : 0, best.value()}, [](Drawn v) {
      const unsigned long long key = warp_largest(v.key);
      const int lane = __ffs(static_cast<int>(__ballot_sync(kAllLanes, v.key == key))) - 1;
      return Drawn{key, __shfl_sync(kAllLanes, v.value, lane)};
    });
  }

  /// Keeps the fewest best tokens whose amount(value) together reaches `target`. It takes a pass
  /// for each bit of the worst token, so it is for the rare rows whose candidates cannot be listed.
  template <class Amount>
  __device__ void keep_amount(unsigned long long target, Amount amount) {
    const uint32_t at = last_that_reaches(target, [&](uint32_t bound) {
      return [=, this](int id, float x) {
        return kept(id, x) && ordered(value(x)) >= bound ? amount(value(x)) : 0;
      };
    });
    const auto has_value = [&](int id, float x) { return kept(id, x) && ordered(value(x)) == at; };
    unsigned long long above = 0, num_ties = 0;
    row_.for_each([&](int id, float x) {
      if (kept(id, x) && ordered(value(x)) > at) above += amount(value(x));
      num_ties += has_value(id, x) ? 1 : 0;
    });
    const ulonglong2 totals = row_.totals(above, num_ties);
    const unsigned long long rest = target > totals.x ? target - totals.x : 1;
    const unsigned long long each = max(amount(from_ordered(at)), 1ull);
    const unsigned long long count = (rest + each - 1) / each;
    int32_t last = Worst::kAnyId;
    if (count < totals.y) {
      const uint32_t least = last_that_reaches(count, [&](uint32_t bound) {
        return [=](int id, float x) {
          return has_value(id, x) && ~static_cast<uint32_t>(id) >= bound ? 1ull : 0ull;
        };
      });
      last = static_cast<int32_t>(~least);
    }
    worst_ = {from_ordered(at), last};
  }
  /// The largest bound for which the sum of amount_from(bound)(id, x) over the row is at least
  /// `target`. The sum does not grow with the bound.
  template <class AmountFrom>
  __device__ uint32_t last_that_reaches(unsigned long long target, AmountFrom amount_from) {
    uint32_t bound = 0;
    for (int bit = 31; bit >= 0; --bit) {
      const uint32_t higher = bound | 1u << bit;
      const auto amount = amount_from(higher);
      unsigned long long sum = 0;
      row_.for_each([&](int id, float x) { sum += amount(id, x); });
      if (row_.total(sum) >= target) bound = higher;
    }
    return bound;
  }

  Row<kClustered>& row_;
  Shared& shared_;
  float scale_, best_;
  Worst worst_;
  int num_listed_ = 0;
};

}  // namespace nanovllm::cuda::rows
