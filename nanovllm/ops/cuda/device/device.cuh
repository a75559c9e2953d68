#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <type_traits>
#include <utility>

#include "nanovllm/base/dtype.h"
#include "nanovllm/ops/cuda/device/runtime.h"

// What every kernel needs: conversions, sums over a warp or a block, and programmatic dependent
// launch.
namespace nanovllm::cuda {

using Bf16 = __nv_bfloat16;
using F16 = __half;

__device__ inline float to_float(float x) { return x; }
__device__ inline float to_float(Bf16 x) { return __bfloat162float(x); }
__device__ inline float to_float(F16 x) { return __half2float(x); }
template <class T>
__device__ inline T from_float(float x) {
  if constexpr (std::is_same_v<T, Bf16>) return __float2bfloat16_rn(x);
  else if constexpr (std::is_same_v<T, F16>) return __float2half_rn(x);
  else return x;
}

/// N elements that one or two instructions load or store.
template <class T, int N>
struct alignas(N * sizeof(T)) Vec {
  T x[N];
};
template <int N, class T>
__device__ inline Vec<T, N> load(const T* p) {
  return *reinterpret_cast<const Vec<T, N>*>(p);
}
template <int N, class T>
__device__ inline void store(T* p, const Vec<T, N>& v) {
  *reinterpret_cast<Vec<T, N>*>(p) = v;
}

__device__ inline float warp_sum(float x) {
#pragma unroll
  for (int lane = 16; lane > 0; lane /= 2) x += __shfl_xor_sync(0xffffffff, x, lane);
  return x;
}

__device__ inline float warp_max(float x) {
#pragma unroll
  for (int lane = 16; lane > 0; lane /= 2) x = fmaxf(x, __shfl_xor_sync(0xffffffff, x, lane));
  return x;
}

/// The sum over a block of whole warps, in every thread; `shared` holds a float for each warp.
__device__ inline float block_sum(float x, float* shared) {
  const int warp = threadIdx.x / 32, num_warps = blockDim.x / 32;
  x = warp_sum(x);
  if (threadIdx.x % 32 == 0) shared[warp] = x;
  __syncthreads();
  x = threadIdx.x % 32 < num_warps ? shared[threadIdx.x % 32] : 0;
  return warp_sum(x);
}

/// Waits until the kernel before has ended and its writes are seen.
__device__ inline void wait_before() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
/// Lets the next kernel's blocks start, as far as their own wait, once all of this one's are there.
__device__ inline void launch_next() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;");
#endif
}
/// Both. So what is read before this call must be older than the kernel before; and older than all
/// norms, and products and rotations of few tokens, just before that, since those let the next one
/// start ahead of their own wait. What begins a step may be read by all.
__device__ inline void begin_kernel() {
  wait_before();
  launch_next();
}

/// What others have written before is seen where they have written this behind it.
template <class T>
__device__ inline T load_acquire(const T* p) {
  static_assert(sizeof(T) == 4);
  uint32_t bits;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(bits) : "l"(p) : "memory");
  return static_cast<T>(bits);
}

/// Calls body(T()) with the C++ type of a model's dtype.
template <class Body>
void with_float_type(DType dtype, Body body) {
  switch (dtype) {
    case DType::kF32:
      return body(float());
    case DType::kBF16:
      return body(Bf16());
    case DType::kF16:
      return body(F16());
    default:
      check_args(false, "no dtype of a model");
  }
}

/// Where a kernel runs, and how many of its blocks are a cluster.
struct ClusterLaunch {
  Launch where;
  int cluster = 1;
};

/// Launches a kernel that calls begin_kernel(): on Hopper it starts while the one before ends.
template <class... Params, class... Args>
void launch(ClusterLaunch how, void (*kernel)(Params...), dim3 grid, int threads,
            size_t shared_bytes, Args&&... args) {
  const Launch& where = how.where;
  cudaLaunchAttribute attributes[2];
  attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[0].val.programmaticStreamSerializationAllowed = where.overlaps ? 1 : 0;
  attributes[1].id = cudaLaunchAttributeClusterDimension;
  attributes[1].val.clusterDim = {static_cast<unsigned>(how.cluster), 1, 1};
  cudaLaunchConfig_t config = {};
  config.gridDim = grid;
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.dynamicSmemBytes = shared_bytes;
  config.stream = where.stream;
  config.attrs = attributes;
  config.numAttrs = how.cluster > 1 ? 2 : where.overlaps ? 1 : 0;
  cuda_check(cudaLaunchKernelEx(&config, kernel, static_cast<Params>(args)...), "kernel launch");
}
template <class... Params, class... Args>
void launch(Launch where, void (*kernel)(Params...), dim3 grid, int threads, size_t shared_bytes,
            Args&&... args) {
  launch(ClusterLaunch{where}, kernel, grid, threads, shared_bytes, std::forward<Args>(args)...);
}

}  // namespace nanovllm::cuda
