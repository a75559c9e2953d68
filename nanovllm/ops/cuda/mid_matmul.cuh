#pragma once

#include <cuda.h>

#include "nanovllm/ops/cuda/hopper.cuh"
#include "nanovllm/ops/cuda/small_matmul.cuh"

// Wrappers of the PTX that mid_matmul.cu needs beyond hopper.cuh.
namespace nanovllm::cuda::hopper {

/// A box of a two-dimensional tensor, columns from `x`, rows from `y`, into shared memory; rows
/// that are not there come as zeros and count as bytes. Reports to `barrier`.
__device__ __forceinline__ void box_copy(uint32_t to, const CUtensorMap& map, int x, int y,
                                         uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%2, %3}], [%4];" ::"r"(to),
      "l"(&map), "r"(x), "r"(y), "r"(barrier)
      : "memory");
}
/// The same into each block of the cluster that `mask` holds, at the same place; reports to the
/// barrier of each.
__device__ __forceinline__ void box_copy_to_cluster(uint32_t to, const CUtensorMap& map, int x,
                                                    int y, uint32_t barrier, int mask) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
      ".multicast::cluster [%0], [%1, {%2, %3}], [%4], %5;" ::"r"(to),
      "l"(&map), "r"(x), "r"(y), "r"(barrier), "h"(static_cast<uint16_t>(mask))
      : "memory");
}
__device__ __forceinline__ void prefetch_map(const CUtensorMap& map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}
__device__ __forceinline__ void prefetch_l2(const void* p) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(p));
}

__device__ __forceinline__ void store_shared(uint32_t to, float x) {
  asm volatile("st.shared.f32 [%0], %1;" ::"r"(to), "f"(x) : "memory");
}
__device__ __forceinline__ void store_shared(uint32_t to, const uint4& v) {
  asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(v.x), "r"(v.y), "r"(v.z),
               "r"(v.w)
               : "memory");
}

/// A barrier of the cluster that publishes no writes, unlike cluster_arrive(): that would wait for
/// all memory traffic of the thread. What fence_barrier_init() has shown is seen behind it.
__device__ __forceinline__ void cluster_sync_relaxed() {
  asm volatile("barrier.cluster.arrive.relaxed;\nbarrier.cluster.wait;" ::: "memory");
}
/// Where block `rank` of the cluster has what lies at `address` here.
__device__ __forceinline__ uint32_t remote_address(uint32_t address, int rank) {
  uint32_t there;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(rank));
  return there;
}
/// Publishes no writes either.
__device__ __forceinline__ void remote_barrier_arrive(uint32_t remote) {
  asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(remote) : "memory");
}
/// Shared memory of this block into another's; reports to that one's barrier.
__device__ __forceinline__ void remote_bulk_copy(uint32_t remote, uint32_t from, uint32_t bytes,
                                                 uint32_t remote_barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes "
      "[%0], [%1], %2, [%3];" ::"r"(remote),
      "r"(from), "r"(bytes), "r"(remote_barrier)
      : "memory");
}

}  // namespace nanovllm::cuda::hopper

namespace nanovllm::cuda {

/// A row-major matrix [rows, k] that comes in boxes of `box_rows` by a chunk, swizzled.
inline CUtensorMap tensor_map(const void* data, int64_t rows, int64_t k, int box_rows) {
  static const auto encode = [] {
    void* function = nullptr;
    cudaDriverEntryPointQueryResult found;
    cuda_check(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000,
                                                cudaEnableDefault, &found),
               "tensor maps");
    check_args(function != nullptr, "the driver has no tensor maps");
    return reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(function);
  }();
  CUtensorMap map;
  const cuuint64_t shape[] = {static_cast<cuuint64_t>(k), static_cast<cuuint64_t>(rows)};
  const cuuint64_t row_bytes[] = {static_cast<cuuint64_t>(k) * 2};
  const cuuint32_t box[] = {kChunk, static_cast<cuuint32_t>(box_rows)}, steps[] = {1, 1};
  const CUresult result =
      encode(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, const_cast<void*>(data), shape, row_bytes,
             box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
             CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  check_args(result == CUDA_SUCCESS, "tensor map");
  return map;
}

}  // namespace nanovllm::cuda
