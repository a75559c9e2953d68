#pragma once

#include "nanovllm/ops/cuda/attention/prefill/prefill_tiles.cuh"
#include "nanovllm/ops/cuda/device/hopper.cuh"

// How prefill_sm90.cu computes a tile whose keys are divided into parts. A warpgroup stores the
// weighted sums of a part with their maximum and sum of weights. The warpgroup that ends last
// merges all parts in their order, so that the result does not depend on which one that is.
namespace nanovllm::cuda::prefill {

/// The number of floats of a part's results for one warpgroup. Each thread has its weighted sums,
/// then two maxima and two sums of weights, stored in pieces of four floats, [pieces][128 threads].
constexpr int kPartThreads = 128;
constexpr int part_floats(int head_dim) { return kPartThreads * (head_dim / 2 + 4); }

/// Stores the results of a part. Returns, to all threads of the warpgroup, whether all parts of the
/// tile have been stored now.
template <int kHeadDim>
__device__ bool store_part(const PrefillParams& params, Part part, int group,
                           const float (&o)[kHeadDim / 2], const float (&maxima)[2],
                           const float (&sums)[2]) {
  const int thread = threadIdx.x % kPartThreads;
  float4* const to = reinterpret_cast<float4*>(params.scratch.partial +
                                               int64_t{(part.first + part.index) * 2 + group} *
                                                   part_floats(kHeadDim));
#pragma unroll
  for (int i = 0; i < kHeadDim / 8; ++i)
    to[i * kPartThreads + thread] = make_float4(o[4 * i], o[4 * i + 1], o[4 * i + 2], o[4 * i + 3]);
  to[kHeadDim / 8 * kPartThreads + thread] = make_float4(maxima[0], maxima[1], sums[0], sums[1]);
  __threadfence();
  hopper::named_barrier_sync(3 + group, kPartThreads);
  bool is_last = false;
  if (thread == 0) {
    int32_t* const counter = params.scratch.counters + kPrefillCounters + part.first * 2 + group;
    is_last = atomicAdd(counter, 1) == part.count - 1;
    if (is_last) *counter = 0;  // for the next launch
  }
  is_last = hopper::named_barrier_or(3 + group, kPartThreads, is_last);
  if (is_last) __threadfence();
  return is_last;
}

/// Merges the stored parts of a tile into o and sums.
template <int kHeadDim>
__device__ void merge_parts(const PrefillParams& params, Part part, int group,
                            float (&o)[kHeadDim / 2], float (&sums)[2]) {
  constexpr int kPieces = kHeadDim / 8;
  const float4* const parts =
      reinterpret_cast<const float4*>(params.scratch.partial +
                                      int64_t{part.first * 2 + group} * part_floats(kHeadDim)) +
      threadIdx.x % kPartThreads;
  const auto part_at = [&](uint32_t index) {
    return parts + int64_t{index} * (2 * part_floats(kHeadDim) / 4);
  };
  float maxima[2] = {-INFINITY, -INFINITY};
  for (uint32_t at = 0; at < part.count; ++at) {
    const float4 totals = __ldcg(part_at(at) + kPieces * kPartThreads);
    maxima[0] = fmaxf(maxima[0], totals.x);
    maxima[1] = fmaxf(maxima[1], totals.y);
  }
#pragma unroll
  for (int i = 0; i < kHeadDim / 2; ++i) o[i] = 0;
  sums[0] = sums[1] = 0;
  for (uint32_t at = 0; at < part.count; ++at) {
    const float4* const from = part_at(at);
    const float4 totals = __ldcg(from + kPieces * kPartThreads);
    // A row that sees no key of a part has the maximum -inf there, but sees one of the first part.
    const float factor[2] = {exp2_approx((totals.x - maxima[0]) * params.scale_log2),
                             exp2_approx((totals.y - maxima[1]) * params.scale_log2)};
    sums[0] += factor[0] * totals.z;
    sums[1] += factor[1] * totals.w;
#pragma unroll
    for (int i = 0; i < kPieces; ++i) {
      const float4 piece = __ldcg(from + i * kPartThreads);
      o[4 * i] += factor[0] * piece.x;
      o[4 * i + 1] += factor[0] * piece.y;
      o[4 * i + 2] += factor[1] * piece.z;
      o[4 * i + 3] += factor[1] * piece.w;
    }
  }
}

}  // namespace nanovllm::cuda::prefill
