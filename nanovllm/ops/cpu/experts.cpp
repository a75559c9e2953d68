#include "nanovllm/ops/cpu/experts.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "nanovllm/base/check.h"
#include "nanovllm/ops/cpu/kernels/elementwise.h"
#include "nanovllm/ops/cpu/rows.h"

namespace nanovllm::cpu {

namespace {

/// Writes the `top_k` experts with the largest logits to `chosen`, the best one first. If logits
/// are equal, the expert with the lower number is better. A NaN is worse than every number, so the
/// chosen experts always differ.
void choose(const float* logits, int64_t num_experts, int32_t* chosen, int64_t top_k) {
  const auto better = [&](int32_t a, int32_t b) {
    return logits[a] > logits[b] || (std::isnan(logits[b]) && !std::isnan(logits[a]));
  };
  // Insert into a sorted list. Few experts are better than the last one in it.
  int64_t count = 0;
  for (int32_t e = 0; e < num_experts; ++e) {
    if (count == top_k && !better(e, chosen[count - 1])) continue;
    int64_t at = count < top_k ? count++ : count - 1;
    for (; at > 0 && better(e, chosen[at - 1]); --at) chosen[at] = chosen[at - 1];
    chosen[at] = e;
  }
}

void softmax_weights(const float* logits, int64_t num_experts, const int32_t* chosen, int64_t top_k,
                     bool normalize, float* weights) {
  const float best = logits[chosen[0]];
  float sum = 0;
  for (int64_t j = 0; j < top_k; ++j) weights[j] = std::exp(logits[chosen[j]] - best);
  if (normalize)
    for (int64_t j = 0; j < top_k; ++j) sum += weights[j];
  else
    for (int64_t e = 0; e < num_experts; ++e) sum += std::exp(logits[e] - best);
  for (int64_t j = 0; j < top_k; ++j) weights[j] /= sum;
}

}  // namespace

void route(const Routing& routing, bool normalize) {
  const int64_t num_tokens = routing.logits.shape[0], num_experts = routing.logits.shape[1];
  const int64_t top_k = routing.weights.shape[1], num_entries = num_tokens * top_k;
  check(top_k <= num_experts && routing.weights.shape[0] == num_tokens &&
            routing.entries.shape == routing.weights.shape &&
            routing.tokens.size() == num_entries && routing.starts.size() == num_experts + 1,
        "route: wrong shapes");
  auto* const entries = routing.entries.as<int32_t>();  // at first the numbers of the experts
  // An exponential takes about as long as 16 elements of other rows.
  for_each_row(num_tokens, 16 * num_experts, [&](int64_t t) {
    const auto* logits = routing.logits.as<const float>() + t * routing.logits.row_stride;
    choose(logits, num_experts, entries + t * top_k, top_k);
    softmax_weights(logits, num_experts, entries + t * top_k, top_k, normalize,
                    routing.weights.as<float>() + t * top_k);
  });
  // This is a counting sort. While the entries are numbered, starts[e + 1] is the next entry of
  // expert e.
  auto* const starts = routing.starts.as<int32_t>();
  std::fill_n(starts, num_experts + 1, 0);
  for (int64_t i = 0; i < num_entries; ++i) ++starts[entries[i] + 1];
  int32_t next = 0;
  for (int64_t e = 0; e < num_experts; ++e) next += std::exchange(starts[e + 1], next);
  for (int64_t i = 0; i < num_entries; ++i) {
    entries[i] = starts[entries[i] + 1]++;
    routing.tokens.as<int32_t>()[entries[i]] = static_cast<int32_t>(i / top_k);
  }
}

void combine_experts(Tensor out, Tensor x, const Routing& routing, Isa isa) {
  const int64_t top_k = routing.weights.shape[1];
  check(x.shape[0] == routing.tokens.size() && x.shape[1] == out.shape[1] && x.dtype == out.dtype &&
            out.shape[0] == routing.weights.shape[0],
        "combine_experts: wrong shapes");
  const auto weighted_sum = kernels_for(isa, out.dtype).elementwise.weighted_sum;
  for_each_row(out.shape[0], top_k * out.shape[1], [&](int64_t t) {
    weighted_sum(row_of(out, t), x.data, x.row_stride,
                 routing.entries.as<const int32_t>() + t * top_k,
                 routing.weights.as<const float>() + t * top_k, top_k, out.shape[1]);
  });
}

}  // namespace nanovllm::cpu
