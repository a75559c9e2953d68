#pragma once

#include "nanovllm/ops/cuda/device/device.cuh"

// How a warp chooses a token's experts from the router's logits.
namespace nanovllm::cuda {

/// A choice of a token: lane i of a warp has choice i.
struct Choice {
  int expert = 0;
  float weight = 0;
};
/// A number that has the order of logits, NaN being the smallest. It is above 0, which stands for
/// a logit that does not exist or has been chosen.
__device__ inline uint32_t choice_order(float logit) { return isnan(logit) ? 1 : ordered(logit); }

/// Chooses, in a warp, the top_k largest of `num_experts` logits; among equal ones, those with the
/// lower numbers. NaN is the smallest. The weights are those of a softmax over all experts, divided
/// by the sum of the chosen ones if `normalizes`. A lane has kPerLane neighbouring logits, and
/// kPerLane * 32 are enough for all.
template <int kPerLane>
__device__ inline Choice choose(const float* logits, int num_experts, int top_k, bool normalizes) {
  const int lane = threadIdx.x % 32;
  float x[kPerLane];
  float most = -INFINITY;
#pragma unroll
  for (int j = 0; j < kPerLane; ++j) {
    const int id = lane * kPerLane + j;
    x[j] = id < num_experts ? logits[id] : -INFINITY;
    most = fmaxf(most, x[j]);
  }
  most = warp_max(most);
  float sum = 0;
  if (!normalizes) {
#pragma unroll
    for (int j = 0; j < kPerLane; ++j)
      if (lane * kPerLane + j < num_experts) sum += expf(x[j] - most);
    sum = warp_sum(sum);
  }
  uint32_t order[kPerLane];  // 0: the expert has been chosen, or does not exist
#pragma unroll
  for (int j = 0; j < kPerLane; ++j)
    order[j] = lane * kPerLane + j >= num_experts ? 0 : choice_order(x[j]);
  Choice mine;
  for (int i = 0; i < top_k; ++i) {
    uint32_t best = 0;
    int at = 0;
    float logit = 0;
#pragma unroll
    for (int j = 0; j < kPerLane; ++j)
      if (order[j] > best) best = order[j], at = j, logit = x[j];
    const uint32_t best_of_all = __reduce_max_sync(kAllLanes, best);
    // Lower lanes have lower numbers.
    const int winner = __ffs(static_cast<int>(__ballot_sync(kAllLanes, best == best_of_all))) - 1;
#pragma unroll
    for (int j = 0; j < kPerLane; ++j)
      if (lane == winner && j == at) order[j] = 0;
    const int id = __shfl_sync(kAllLanes, lane * kPerLane + at, winner);
    logit = __shfl_sync(kAllLanes, logit, winner);
    if (lane == i) mine = {id, logit};
  }
  const float share = lane < top_k ? expf(mine.weight - most) : 0;
  mine.weight = share / (normalizes ? warp_sum(share) : sum);
  return mine;
}

}  // namespace nanovllm::cuda
