#pragma once

#include "nanovllm/ops/cuda/attention/kv_layout.cuh"
#include "nanovllm/ops/cuda/device/e4m3.cuh"

// How the kernels that compute keys and values store them in the cache, whose elements are the
// model's or e4m3 (C). The threads that have parts of a head call these functions together.
namespace nanovllm::cuda {

template <class C>
inline constexpr bool kIsE4m3 = std::is_same_v<C, E4m3>;

/// A key (or value) of one head: row `row` of an entry of the cache.
template <class C>
struct CacheEntry {
  char* entry;
  int row;

  /// Stores N elements from d on, which are in one chunk of 16 bytes.
  template <int N>
  __device__ void store(const KvLayout& layout, int d, const Vec<C, N>& x) const {
    cuda::store<N>(reinterpret_cast<C*>(entry + layout.at(row, d)), x);
  }
  __device__ void store_scale(const KvLayout& layout, float scale) const {
    if constexpr (kIsE4m3<C>) *reinterpret_cast<float*>(entry + layout.scale_at(row)) = scale;
  }
};

/// Returns, in each of `num_lanes` neighbouring lanes (a power of two), the largest x of them all.
__device__ inline uint32_t lanes_max(uint32_t x, int num_lanes) {
  const uint32_t mask = kAllLanes >> (32 - num_lanes) << (threadIdx.x % 32 & -num_lanes);
  for (int lane = num_lanes / 2; lane > 0; lane /= 2) x = max(x, __shfl_xor_sync(mask, x, lane));
  return x;
}
/// The scale that a head gets in a cache of e4m3; 1 in other caches. `num_lanes` neighbouring lanes
/// have the head, each of them two parts of it.
template <class C, class T, int N>
__device__ inline float scale_of_head(const Vec<T, N>& low, const Vec<T, N>& high, int num_lanes) {
  if constexpr (!kIsE4m3<C>) return 1;
  else return e4m3_scale(lanes_max(largest_magnitude(high, largest_magnitude(low, 0)), num_lanes));
}

/// Elements of a head as the cache has them, where `inverse` is 1 / scale.
template <class C, class T, int N>
__device__ inline Vec<C, N> cache_elements(const Vec<T, N>& x, float inverse) {
  if constexpr (kIsE4m3<C>) return quantized(x, inverse);
  else return x;
}

}  // namespace nanovllm::cuda
