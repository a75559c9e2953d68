#pragma once

#include "nanovllm/ops/cuda/sampling/sampler_row.cuh"

// The filters min_p, top_k and top_p over a Row, and drawing from what they keep.
//
// top_k lists the tokens that may be among the best k, few more than k, and sorts them. top_p needs
// no order at all: a token is drawn from all that the other filters keep, and then the weight of
// the tokens better than it decides whether top_p keeps it. If not, neither is any worse token
// kept, and one of the better tokens is drawn. The noise belongs to the token, so this gives the
// token that is drawn from the kept ones. Source of the idea: FlashInfer's sampling by rejection
// (Ye et al., "FlashInfer", 2025), which draws anew each time.
namespace nanovllm::cuda::rows {

/// The worst token that may be drawn.
struct Worst {
  float value = 0;
  int32_t id = 0x7fffffff;
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

  /// Keeps the best `k`, or all if there are fewer.
  __device__ void keep_count(int k) {
    const uint32_t mine = row_.mine() == 0 ? 0 : ordered(value(from_ordered(row_.mine())));
    const uint32_t bound = row_.bound_of_best(k, mine);
    const int count =
        row_.list([&](int id, float x) { return kept(id, x) && ordered(value(x)) >= bound; },
                  [&](float x) { return value(x); });
    if (count < k) return;
    if (count > kMaxListed)
      return keep_amount(static_cast<unsigned long long>(k), [](float) { return 1ull; });
    const unsigned long long last = row_.listed(k - 1);
    worst_ = {score_of(last), id_of(last)};
  }
  /// Keeps the fewest best tokens whose weight reaches this share of the weight of all kept tokens.
  __device__ void keep_share(float share) {
    const auto weight = [&](float v) { return weight_of(__fadd_rn(v, -best_)); };
    unsigned long long all = 0;
    row_.for_each([&](int id, float x) { all += kept(id, x) ? weight(value(x)) : 0; });
    keep_amount(target(share, row_.total(all)), weight);
  }

  /// The token_key() of the kept token with the best score, if only the fewest best tokens whose
  /// weight reaches the share `top_p` of all may be drawn.
  __device__ unsigned long long draw(const RowParams& params) {
    const Worst all = worst_;
    for (;;) {
      const unsigned long long drawn = draw_once(params);
      if (params.top_p >= 1 || drawn == 0) return drawn;
      const int id = id_of(drawn);
      const Worst token = {value(row_.value_of(id)), id};
      if (within_share(params.top_p, all, token)) return drawn;
      worst_ = {token.value, token.id - 1};
    }
  }

 private:
  __device__ static unsigned long long target(float share, unsigned long long weight) {
    return static_cast<unsigned long long>(
        ceil(static_cast<double>(share) * static_cast<double>(weight)));
  }
  /// The weight of the tokens of `all`, and of those better than `token`.
  struct Weights {
    unsigned long long all, better;
  };
  /// Calls weight(value) for the values of the tokens in `all`.
  template <class Weight, class Finish>
  __device__ Weights weights(const Worst& all, const Worst& token, Weight weight, Finish finish) {
    decltype(weight(0.0f)) sum = 0, better = 0;
    row_.for_each([&](int id, float x) {
      const float v = value(x);
      if (!all.keeps(v, id)) return;
      const auto w = weight(v);
      sum += w;
      if (token.keeps(v, id) && id != token.id) better += w;
    });
    const ulonglong2 totals = row_.totals(finish(sum), finish(better));
    return {totals.x, totals.y};
  }
  /// Whether `token` is among the fewest best tokens of `all` that reach this share of the weight.
  __device__ bool within_share(float share, const Worst& all, const Worst& token) {
    // Floats decide, unless they are so close that their errors might.
    constexpr double kError = 1e-4;
    const Weights about = weights(
        all, token, [&](float v) { return exp2_approx((v - best_) * kLog2e); },
        [](float sum) { return __float2ull_rn(sum * 0x1p40f); });
    const double reached = static_cast<double>(about.better),
                 wanted = static_cast<double>(share) * static_cast<double>(about.all);
    if (reached < wanted * (1 - kError)) return true;
    if (reached > wanted * (1 + kError)) return false;
    const Weights exact = weights(
        all, token, [&](float v) { return weight_of(__fadd_rn(v, -best_)); },
        [](unsigned long long sum) { return sum; });
    return exact.better < target(share, exact.all);
  }

  __device__ unsigned long long draw_once(const RowParams& params) {
    if (threadIdx.x == 0) shared_.highest = ordered(-INFINITY);
    __syncthreads();
    BestToken best;
    row_.for_each_four([&](int id, float(&x)[4]) {
      float highest = -INFINITY;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if (!kept(id + i, x[i])) x[i] = -INFINITY;
        highest = fmaxf(highest, x[i]);
      }
      if (highest == -INFINITY) return;
      const uint4 words = noise_words(params, id);
      const uint32_t word[4] = {words.x, words.y, words.z, words.w};
      const float floor = from_ordered(*static_cast<volatile uint32_t*>(&shared_.highest));
      if (!BestToken::any_may_beat(floor, x, scale_, word)) return;
#pragma unroll
      for (int i = 0; i < 4; ++i)
        if (x[i] > -INFINITY && BestToken::may_beat(floor, value(x[i]), word[i]))
          best.add(value(x[i]), word[i], id + i);
      if (best.approx() > floor) atomicMax(&shared_.highest, ordered(best.approx()));
    });
    __syncthreads();
    const bool may_win = BestToken::may_win(from_ordered(shared_.highest), best.approx());
    return row_.largest(may_win ? best.key() : 0);
  }

  /// Keeps the fewest best tokens whose amount(value) together reaches `target`: for the rare rows
  /// whose candidates cannot be listed, with a pass for each bit of the worst token.
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
    int32_t last = 0x7fffffff;
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
};

}  // namespace nanovllm::cuda::rows
