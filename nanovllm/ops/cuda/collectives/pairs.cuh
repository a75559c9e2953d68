#pragma once

#include "nanovllm/ops/cuda/collectives/peers.h"
#include "nanovllm/ops/cuda/device/device.cuh"

// All-reduces of few tokens that the GEMM before them begins: instead of writing its outputs to
// memory, it sends them to all ranks, also to its own. sum_pairs() then finishes the all-reduce. It
// polls for what the ranks have sent, and need not wait until the GEMM has ended.
//
// A pair is 8 bytes: two elements of 16 bits and a flag. NVLink delivers an aligned store of 8
// bytes as a whole, so a reader that sees the flag has the data too. Source: the protocol LL of
// NCCL, as Hu et al. describe it in "Demystifying NCCL", 2025. LL128 has fewer flags, but its lines
// are longer than the few columns of a thread block.
namespace nanovllm::cuda {

/// The number of the exchange that this kernel takes part in.
__device__ inline uint32_t current_epoch(const Peers& peers) {
  return *static_cast<volatile uint32_t*>(peers.epoch) + 1;
}
/// The pairs that rank `from` writes to the buffer of rank `buffer`. Odd and even epochs have
/// separate memory.
__device__ inline uint2* pairs_of(const Peers& peers, int buffer, uint32_t epoch, int from) {
  return reinterpret_cast<uint2*>(peers.buffers[buffer] + peers.pairs_at +
                                  kPairsBytes * (epoch % 2 * peers.world + from));
}
/// Sends element `at` of this rank's addend to all ranks. The lanes 2 i and 2 i + 1 of a warp call
/// this together for two neighbouring elements, of which the first one's index is even.
template <class T>
__device__ inline void send_element(const Peers& peers, uint32_t epoch, int64_t at, float value) {
  const float next = __shfl_down_sync(3u << (threadIdx.x % 32 & ~1u), value, 1);
  if (threadIdx.x % 2 != 0) return;
  const uint32_t elements = pack<T>(value, next);
  for (int r = 0; r < peers.world; ++r)
    asm volatile("st.volatile.global.v2.u32 [%0], {%1, %2};" ::"l"(
                     pairs_of(peers, r, epoch, peers.rank) + at / 2),
                 "r"(elements), "r"(epoch)
                 : "memory");
}

}  // namespace nanovllm::cuda
