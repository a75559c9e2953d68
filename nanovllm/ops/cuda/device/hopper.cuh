#pragma once

// Thin wrappers of the PTX that kernels for Hopper need: mbarriers, bulk copies and copies by
// tensor map (both by TMA, the Tensor Memory Accelerator), named barriers, register reallocation,
// fences, clusters. wgmma.cuh has the matrix instructions. Source of all: NVIDIA's PTX ISA.

#include <cuda.h>

#include <cstdint>

#include "nanovllm/ops/cuda/device/device.cuh"

namespace nanovllm::cuda::hopper {

// -- mbarriers

__device__ __forceinline__ void barrier_init(uint32_t barrier, int num_arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(num_arrivals));
}

/// Makes initialised barriers visible to bulk copies and to the cluster.
__device__ __forceinline__ void fence_barrier_init() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

__device__ __forceinline__ void barrier_arrive(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

/// Arrives at the barrier, and keeps its phase open until bulk copies have delivered `bytes`.
__device__ __forceinline__ void barrier_arrive_expect(uint32_t barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
               : "memory");
}

/// Waits for the end of the phase of this parity. A new barrier is in phase 0, so that a wait for
/// parity 1 returns at once.
__device__ __forceinline__ void barrier_wait(uint32_t barrier, uint32_t parity) {
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "wait_loop:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@done bra wait_done;\n"
      "bra wait_loop;\n"
      "wait_done:\n"
      "}\n" ::"r"(barrier),
      "r"(parity)
      : "memory");
}

/// A stage of a ring, and the parity of its barriers in this round.
template <int kStages>
struct RingCursor {
  int stage = 0;
  uint32_t parity = 0;
  __device__ __forceinline__ void advance() {
    if (++stage == kStages) {
      stage = 0;
      parity ^= 1;
    }
  }
};

// -- copies

/// Copies contiguous bytes from global to shared memory and reports them to `barrier`. The size and
/// both addresses are multiples of 16.
__device__ __forceinline__ void bulk_copy(uint32_t to, const void* from, uint32_t bytes,
                                          uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes "
      "[%0], [%1], %2, [%3];" ::"r"(to),
      "l"(from), "r"(bytes), "r"(barrier)
      : "memory");
}

/// Copies a box of a matrix, whose first column is `x` and first row `y`, into shared memory, and
/// reports its bytes to `barrier`. Elements outside of the matrix are zero.
__device__ __forceinline__ void box_copy(uint32_t to, const CUtensorMap& map, int x, int y,
                                         uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%2, %3}], [%4];" ::"r"(to),
      "l"(&map), "r"(x), "r"(y), "r"(barrier)
      : "memory");
}
/// Copies a box as box_copy() does, into every thread block of the cluster whose bit is in `mask`,
/// at the same address. The barrier in each of them gets a report.
__device__ __forceinline__ void box_copy_multicast(uint32_t to, const CUtensorMap& map, int x,
                                                   int y, uint32_t barrier, int mask) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
      ".multicast::cluster [%0], [%1, {%2, %3}], [%4], %5;" ::"r"(to),
      "l"(&map), "r"(x), "r"(y), "r"(barrier), "h"(static_cast<uint16_t>(mask))
      : "memory");
}
__device__ __forceinline__ void prefetch_tensor_map(const CUtensorMap& map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}
__device__ __forceinline__ void prefetch_l2(const void* p) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(p));
}

// -- threads and registers

/// Orders this thread's ordinary writes to shared memory before later reads by wgmma and bulk
/// copies. Where another thread issues those, a barrier is needed as well.
__device__ __forceinline__ void fence_async_proxy() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

__device__ __forceinline__ void named_barrier_sync(int id, int num_threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(num_threads) : "memory");
}

__device__ __forceinline__ void named_barrier_arrive(int id, int num_threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(num_threads) : "memory");
}
/// named_barrier_sync() that tells every thread whether the condition was true in one of them.
__device__ __forceinline__ bool named_barrier_or(int id, int num_threads, bool condition) {
  int any;
  asm volatile(
      "{\n.reg .pred p, q;\n"
      "setp.ne.s32 p, %3, 0;\n"
      "barrier.cta.red.or.pred q, %1, %2, p;\n"
      "selp.s32 %0, 1, 0, q;\n}"
      : "=r"(any)
      : "r"(id), "r"(num_threads), "r"(static_cast<int>(condition))
      : "memory");
  return any != 0;
}

/// Takes free registers of the multiprocessor, or gives registers back, until each thread of the
/// warpgroup has this many.
template <int kRegisters>
__device__ __forceinline__ void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

template <int kRegisters>
__device__ __forceinline__ void give_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

// -- clusters

__device__ __forceinline__ int cluster_rank() {
  int rank;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}

__device__ __forceinline__ int cluster_size() {
  int size;
  asm("mov.u32 %0, %%cluster_nctarank;" : "=r"(size));
  return size;
}

/// A barrier of the cluster in two halves: what a thread wrote before cluster_arrive() is visible
/// to all threads of the cluster after their cluster_wait().
__device__ __forceinline__ void cluster_arrive() {
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}

__device__ __forceinline__ void cluster_wait() {
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

/// A barrier of the cluster that makes only the initialisation of mbarriers visible, after
/// fence_barrier_init(), and no other writes. So it need not wait for all memory traffic of the
/// thread, as cluster_arrive() does.
__device__ __forceinline__ void cluster_sync_relaxed() {
  asm volatile("barrier.cluster.arrive.relaxed;\nbarrier.cluster.wait;" ::: "memory");
}
/// cluster_arrive() for threads that wrote nothing, or that called cluster_fence() since.
__device__ __forceinline__ void cluster_arrive_relaxed() {
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}
/// cluster_arrive_relaxed() for places where the lanes of a warp may have diverged.
__device__ __forceinline__ void cluster_arrive_alone() {
  asm volatile("barrier.cluster.arrive.relaxed;" ::: "memory");
}
/// Makes what this thread wrote visible to the cluster, before it arrives at a barrier.
__device__ __forceinline__ void cluster_fence() {
  asm volatile("fence.acq_rel.cluster;" ::: "memory");
}
/// The address in thread block `rank` of the cluster that corresponds to `address` in this one.
__device__ __forceinline__ uint32_t remote_address(uint32_t address, int rank) {
  uint32_t there;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(rank));
  return there;
}
/// Writes to the variable `at` in the shared memory of thread block `rank` of the cluster, without
/// waiting for anything. The barrier at `barrier` in that thread block gets a report of the bytes.
__device__ __forceinline__ void remote_store_async(unsigned long long* at, int rank,
                                                   unsigned long long value, uint32_t barrier) {
  asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.u64 [%0], %1, [%2];" ::"r"(
                   remote_address(shared_address(at), rank)),
               "l"(value), "r"(remote_address(barrier, rank))
               : "memory");
}
__device__ __forceinline__ void remote_store_async(ulonglong2* at, int rank, ulonglong2 value,
                                                   uint32_t barrier) {
  asm volatile(
      "st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.u64 [%0], {%1, %2}, [%3];" ::"r"(
          remote_address(shared_address(at), rank)),
      "l"(value.x), "l"(value.y), "r"(remote_address(barrier, rank))
      : "memory");
}
/// Adds to the variable `at` in the shared memory of thread block `rank` of the cluster, and
/// returns its value before the addition.
__device__ __forceinline__ int remote_add(int* at, int rank, int value) {
  int before;
  asm volatile("atom.relaxed.cluster.shared::cluster.add.s32 %0, [%1], %2;"
               : "=r"(before)
               : "r"(remote_address(shared_address(at), rank)), "r"(value)
               : "memory");
  return before;
}
/// Arrives at another thread block's barrier without making writes visible.
__device__ __forceinline__ void remote_barrier_arrive(uint32_t remote) {
  asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(remote) : "memory");
}
/// Copies shared memory of this thread block to that of another one, and reports to a barrier
/// there.
__device__ __forceinline__ void remote_bulk_copy(uint32_t remote, uint32_t from, uint32_t bytes,
                                                 uint32_t remote_barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes "
      "[%0], [%1], %2, [%3];" ::"r"(remote),
      "r"(from), "r"(bytes), "r"(remote_barrier)
      : "memory");
}

}  // namespace nanovllm::cuda::hopper
