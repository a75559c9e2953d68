#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <type_traits>
#include <utility>

#include "nanovllm/base/dtype.h"
#include "nanovllm/ops/cuda/device/runtime.h"

// Device functions that every kernel may need: conversions, vector loads and stores, reductions
// over a warp or a thread block, shared memory, asynchronous copies, and programmatic dependent
// launch.
namespace nanovllm::cuda {

using Bf16 = __nv_bfloat16;
using F16 = __half;

inline constexpr float kLog2e = 1.44269504f;  ///< e^x = 2^(x * kLog2e), and exp2 is one instruction

// -- conversions

__device__ inline float to_float(float x) { return x; }
__device__ inline float to_float(Bf16 x) { return __bfloat162float(x); }
__device__ inline float to_float(F16 x) { return __half2float(x); }
template <class T>
__device__ inline T from_float(float x) {
  if constexpr (std::is_same_v<T, Bf16>) return __float2bfloat16_rn(x);
  else if constexpr (std::is_same_v<T, F16>) return __float2half_rn(x);
  else return x;
}

/// Two floats rounded to the 16-bit type T by one instruction, `low` in the low half.
template <class T>
__device__ __forceinline__ uint32_t pack(float low, float high) {
  uint32_t d;
  if constexpr (std::is_same_v<T, F16>) {
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(d) : "f"(high), "f"(low));
  } else {
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(d) : "f"(high), "f"(low));
  }
  return d;
}

/// 2^x with an error of two units in the last place; numbers below 2^-126 become 0.
__device__ __forceinline__ float exp2_approx(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

/// An unsigned number for each float, in the same order.
__device__ inline uint32_t ordered(float x) {
  const uint32_t bits = __float_as_uint(x + 0.0f);  // -0 becomes 0
  return bits & 0x80000000 ? ~bits : bits | 0x80000000;
}
__device__ inline float from_ordered(uint32_t x) {
  return __uint_as_float(x & 0x80000000 ? x & 0x7fffffff : ~x);
}
/// The bits of x as another type of the same size.
template <class To, class From>
__device__ inline To bits_as(const From& x) {
  static_assert(sizeof(To) == sizeof(From));
  return *reinterpret_cast<const To*>(&x);
}

// -- vectors

/// N elements that one or two instructions load or store.
template <class T, int N>
struct alignas(N * sizeof(T)) Vec {
  T x[N];
};
/// How many elements of type T are 16 bytes, the widest load and store.
template <class T>
constexpr int kPer16Bytes = 16 / sizeof(T);
template <int N, class T>
__device__ inline Vec<T, N> load(const T* p) {
  return *reinterpret_cast<const Vec<T, N>*>(p);
}
template <int N, class T>
__device__ inline void store(T* p, const Vec<T, N>& v) {
  *reinterpret_cast<Vec<T, N>*>(p) = v;
}

/// N floats, each rounded to T.
template <class T, int N>
__device__ inline Vec<T, N> rounded(const float (&x)[N]) {
  Vec<T, N> v;
  if constexpr (sizeof(T) == 2 && N % 2 == 0) {
#pragma unroll
    for (int i = 0; i < N; i += 2) {
      const auto pair = bits_as<Vec<T, 2>>(pack<T>(x[i], x[i + 1]));
      v.x[i] = pair.x[0], v.x[i + 1] = pair.x[1];
    }
  } else {
#pragma unroll
    for (int i = 0; i < N; ++i) v.x[i] = from_float<T>(x[i]);
  }
  return v;
}

// -- reductions

inline constexpr uint32_t kAllLanes = 0xffffffff;

struct Sum {
  template <class T>
  __device__ T operator()(T a, T b) const {
    return a + b;
  }
};
struct Max {
  __device__ float operator()(float a, float b) const { return fmaxf(a, b); }
  template <class T>
  __device__ T operator()(T a, T b) const {
    return max(a, b);
  }
};

/// Combines the x of all lanes of the warp with `combine`, and returns the result in every lane.
template <class Combine, class T>
__device__ inline T warp_reduce(T x, Combine combine) {
#pragma unroll
  for (int lane = 16; lane > 0; lane /= 2) x = combine(x, __shfl_xor_sync(kAllLanes, x, lane));
  return x;
}
template <class T>
__device__ inline T warp_sum(T x) {
  return warp_reduce(x, Sum());
}
template <class T>
__device__ inline T warp_max(T x) {
  return warp_reduce(x, Max());
}

/// warp_reduce() over the four lanes of a quad, which have the same lane / 4. A quad holds a row of
/// an mma or wgmma accumulator.
template <class Combine, class T>
__device__ inline T quad_reduce(T x, Combine combine) {
  x = combine(x, __shfl_xor_sync(kAllLanes, x, 1));
  return combine(x, __shfl_xor_sync(kAllLanes, x, 2));
}
/// warp_reduce() over the eight lanes with the same lane % 4, which hold a column of an
/// accumulator.
template <class Combine, class T>
__device__ inline T column_reduce(T x, Combine combine) {
#pragma unroll
  for (int lane = 4; lane < 32; lane *= 2) x = combine(x, __shfl_xor_sync(kAllLanes, x, lane));
  return x;
}
/// The sum of x over `num_lanes` neighbouring lanes, in each of them. `num_lanes` is a power of
/// two, and only these lanes need to call this together.
__device__ inline float lanes_sum(float x, int num_lanes) {
  const uint32_t mask = kAllLanes >> (32 - num_lanes) << (threadIdx.x % 32 & -num_lanes);
  for (int lane = num_lanes / 2; lane > 0; lane /= 2) x += __shfl_xor_sync(mask, x, lane);
  return x;
}
/// The sum of x over this lane and all lower ones.
__device__ inline int warp_inclusive_scan(int x) {
#pragma unroll
  for (int distance = 1; distance < 32; distance *= 2) {
    const int other = __shfl_up_sync(kAllLanes, x, distance);
    if (static_cast<int>(threadIdx.x) % 32 >= distance) x += other;
  }
  return x;
}

/// Combines the x of all threads of a thread block, and returns the result in every thread. The
/// block has whole warps; `identity` combined with x gives x; `shared` holds a T for each warp.
/// Before `shared` is used again the thread block needs a barrier.
template <class Combine, class T>
__device__ inline T block_reduce(T x, T* shared, Combine combine, T identity = {}) {
  const int warp = threadIdx.x / 32, num_warps = blockDim.x / 32, lane = threadIdx.x % 32;
  x = warp_reduce(x, combine);
  if (lane == 0) shared[warp] = x;
  __syncthreads();
  x = lane < num_warps ? shared[lane] : identity;
  return warp_reduce(x, combine);
}

/// Transposes 4 by 4 words among the lanes of a quad: lane q gets word q of each lane.
__device__ __forceinline__ uint4 transpose_quad(uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
  const bool odd = threadIdx.x & 1, upper = threadIdx.x & 2;
  const uint32_t x = __shfl_xor_sync(kAllLanes, odd ? a : b, 1);
  const uint32_t y = __shfl_xor_sync(kAllLanes, odd ? c : d, 1);
  const uint32_t low0 = odd ? x : a, high0 = odd ? b : x, low1 = odd ? y : c, high1 = odd ? d : y;
  const uint32_t u = __shfl_xor_sync(kAllLanes, upper ? low0 : low1, 2);
  const uint32_t v = __shfl_xor_sync(kAllLanes, upper ? high0 : high1, 2);
  return upper ? uint4{u, v, low1, high1} : uint4{low0, high0, u, v};
}

/// The last index of [0, size) with sorted[index] <= x; 0 if there is none.
__device__ inline int last_not_above(const int32_t* sorted, int size, int x) {
  int low = 0, high = size;
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    (sorted[middle] <= x ? low : high) = middle;
  }
  return low;
}

// -- shared memory, whose addresses are 32-bit numbers in PTX

__device__ __forceinline__ uint32_t shared_address(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}
__device__ inline uint4 load_shared(uint32_t from) {
  uint4 v;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "r"(from)
               : "memory");
  return v;
}
__device__ __forceinline__ uint32_t load_shared_word(uint32_t from) {
  uint32_t x;
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(x) : "r"(from) : "memory");
  return x;
}
__device__ __forceinline__ void store_shared(uint32_t to, float x) {
  asm volatile("st.shared.f32 [%0], %1;" ::"r"(to), "f"(x) : "memory");
}
__device__ __forceinline__ void store_shared(uint32_t to, const uint4& x) {
  asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(x.x), "r"(x.y), "r"(x.z),
               "r"(x.w)
               : "memory");
}
__device__ __forceinline__ void store_shared_zeros16(uint32_t to) {
  asm volatile("st.shared.v4.b32 [%0], {%1, %1, %1, %1};" ::"r"(to), "r"(0) : "memory");
}

// -- asynchronous copies into shared memory (cp.async), of 16 bytes a thread

__device__ __forceinline__ void async_copy16(uint32_t to, const void* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}
/// Copies 16 bytes, or stores zeros if `exists` is false.
__device__ __forceinline__ void async_copy16_or_zero(uint32_t to, const void* from, bool exists) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from),
               "r"(exists ? 16 : 0)
               : "memory");
}
/// Copies 16 bytes and lets the L2 cache fetch the whole 128 bytes around them, because other
/// copies will soon read the rest.
__device__ __forceinline__ void async_copy16_of_128(uint32_t to, const void* from) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" ::"r"(to), "l"(from)
               : "memory");
}
/// Ends a group of this thread's copies.
__device__ __forceinline__ void commit_async_copies() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
/// Waits until at most N groups of this thread's copies are unfinished.
template <int N>
__device__ __forceinline__ void wait_async_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}
__device__ __forceinline__ void wait_all_async_copies() {
  asm volatile("cp.async.wait_all;" ::: "memory");
}

// -- programmatic dependent launch (Hopper and later)

/// Waits until the previous kernel of the stream has ended and its writes are visible.
__device__ inline void wait_for_previous_kernel() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
/// Lets thread blocks of the next kernel start as soon as all blocks of this one have called this
/// or ended. They run up to their own wait_for_previous_kernel().
__device__ inline void launch_dependents() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;");
#endif
}
/// Waits for the previous kernel, then releases the next one. Before this call a kernel must not
/// read data that is written by a kernel that may still run. This is the previous kernel, and also
/// the one before it if the previous kernel releases its successor before its own wait, as norms,
/// rotations and GEMMs of few tokens do. All kernels may read the arrays of the step (begin_step)
/// before this call.
__device__ inline void begin_kernel() {
  wait_for_previous_kernel();
  launch_dependents();
}

/// Loads with acquire semantics: writes before the matching release are visible afterwards.
template <class T>
__device__ inline T load_acquire(const T* p) {
  static_assert(sizeof(T) == 4);
  uint32_t bits;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(bits) : "l"(p) : "memory");
  return static_cast<T>(bits);
}

// -- launching

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
      check_args(false, "a kernel was called with a dtype that no model has");
  }
}

/// Calls body(T()) with the C++ type of a model's 16-bit dtype.
template <class Body>
void with_16bit_type(DType dtype, Body body) {
  if (dtype == DType::kBF16) return body(Bf16());
  check_args(dtype == DType::kF16, "a kernel for 16-bit types was called with another dtype");
  body(F16());
}

/// ceil(n / per), as the size of a grid.
template <class N>
unsigned blocks_for(N n, int per = 1) {
  return static_cast<unsigned>((n + per - 1) / per);
}

/// Where a kernel runs, and how many thread blocks form a cluster.
struct ClusterLaunch {
  Launch where;
  int cluster = 1;
};

/// Launches a kernel that calls wait_for_previous_kernel() or begin_kernel(): on Hopper its thread
/// blocks may start before the previous kernel has ended.
template <class... Params, class... Args>
void launch(ClusterLaunch how, void (*kernel)(Params...), dim3 grid, int threads,
            size_t shared_bytes, Args&&... args) {
  const Launch& where = how.where;
  check_args(static_cast<int64_t>(shared_bytes) <= where.shared_bytes,
             "a kernel needs more shared memory than the GPU has");
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
