#pragma once

#include "nanovllm/ops/cuda/collectives/collectives.h"
#include "nanovllm/ops/cuda/collectives/pairs.cuh"
#include "nanovllm/ops/cuda/elementwise/row_ops.cuh"

// Device functions that exchange data through the memory of other GPUs. They use two protocols;
// pairs.cuh has a third one:
// - LL128 sends lines of 128 bytes, of which the last 16 are a flag. Eight lanes store a line at
//   once, and NVLink delivers such a store as a whole. So a reader that sees the flag has the data
//   too, and no fence is needed.
// - The two-shot kernels use plain stores, then a barrier over the ranks: a fence, and a flag for
//   each thread block.
// Sums are added in the order of the ranks in float32, so that all ranks get the same bits. Source
// of LL128: NCCL, as Hu et al. describe it in "Demystifying NCCL", 2025.
namespace nanovllm::cuda {

// -- the exchange buffer

// The exchange buffer of a rank holds the flags of the barriers, then the LL128 lines, the slices
// and the pairs that each rank writes to it. There are two sets of lines, slices and pairs, one for
// odd and one for even epochs. An epoch is the number of an exchange.

constexpr size_t kFlagBytes = size_t{2} * kTwoShotBlocks * kMaxPeers * sizeof(uint32_t);

__host__ __device__ constexpr size_t slice_bytes(int world) {
  return (kTwoShotBytes / world + 15) / 16 * 16;
}
/// A line of LL128 is seven units of 16 bytes and a flag of 16 bytes. A warp stores four lines.
constexpr int kUnitsPerLine = 7;
constexpr size_t kLinesBytes = (kLl128Bytes / 16 / kUnitsPerLine + 4) / 4 * 512;
/// The lines that rank `from` writes to the buffer of rank `buffer`.
__device__ inline uint4* lines_of(const Peers& peers, int buffer, uint32_t epoch, int from) {
  return reinterpret_cast<uint4*>(peers.buffers[buffer] + kFlagBytes +
                                  kLinesBytes * (epoch % 2 * peers.world + from));
}
/// The slice that rank `from` writes to the buffer of rank `buffer`: its addends in phase 0, the
/// sums in phase 1.
__device__ inline uint4* slice_of(const Peers& peers, int buffer, uint32_t epoch, int phase,
                                  int from) {
  const size_t lines = 2 * kLinesBytes * peers.world;
  return reinterpret_cast<uint4*>(peers.buffers[buffer] + kFlagBytes + lines +
                                  slice_bytes(peers.world) *
                                      ((epoch % 2 * 2 + phase) * peers.world + from));
}
/// The barrier flag of this thread block that rank `from` sets in the buffer of rank `buffer`.
__device__ inline uint32_t* flag_of(const Peers& peers, int buffer, int phase, int from) {
  return reinterpret_cast<uint32_t*>(peers.buffers[buffer]) +
         (phase * kTwoShotBlocks + blockIdx.x) * kMaxPeers + from;
}

// -- waiting

/// Calls body(rank) for each other rank; kMaxWorld is at least the number of ranks. The loop is
/// unrolled, so that arrays indexed by the rank stay in registers.
template <int kMaxWorld, class Body>
__device__ inline void for_peers(const Peers& peers, Body body) {
#pragma unroll
  for (int r = 0; r < kMaxWorld; ++r)
    if (r < peers.world && r != peers.rank) body(r);
}
/// Calls body with the smallest kMaxWorld that kernels are compiled for and that holds `world`
/// ranks, as an integral_constant.
template <class Body>
void with_max_world(int world, Body body) {
  if (world <= 2) body(std::integral_constant<int, 2>());
  else if (world <= 4) body(std::integral_constant<int, 4>());
  else body(std::integral_constant<int, kMaxPeers>());
}

/// Whether a rank has died, so that waiting is useless. Waiting loops call this rarely, since the
/// flag is in host memory.
__device__ inline bool is_aborted(const Peers& peers) {
  return *static_cast<const volatile uint32_t*>(peers.aborted) != 0;
}
/// Ends the exchange once all thread blocks have called this function.
__device__ inline void end_epoch(const Peers& peers, uint32_t epoch) {
  __syncthreads();
  if (threadIdx.x != 0 || atomicAdd(&peers.epoch[1], 1u) != gridDim.x - 1) return;
  peers.epoch[1] = 0;
  peers.epoch[0] = epoch;
}

/// Every lane of a warp stores its unit; every eighth lane stores the flag, which is `epoch`.
__device__ inline void write_line(uint4* to, uint4 unit, uint32_t epoch) {
  if (threadIdx.x % 8 == kUnitsPerLine) unit = make_uint4(epoch, epoch, epoch, epoch);
  __syncwarp();  // so that a line is one memory access
  asm volatile("st.volatile.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(unit.x),
               "r"(unit.y), "r"(unit.z), "r"(unit.w)
               : "memory");
}
/// Loads memory that another GPU may have just written.
__device__ inline uint4 load_volatile(const uint4* from) {
  uint4 unit;
  asm volatile("ld.volatile.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(unit.x), "=r"(unit.y), "=r"(unit.z), "=r"(unit.w)
               : "l"(from)
               : "memory");
  return unit;
}
/// Waits for the line that holds unit `at` from every peer whose bit is set in `writers`, and
/// returns the units in units[rank]. The loads of all peers are in flight at the same time.
/// `writers` is the same in all lanes.
template <int kMaxWorld>
__device__ inline void read_lines(const Peers& peers, uint32_t epoch, int at,
                                  uint4 (&units)[kMaxWorld], uint32_t writers = ~0u) {
  for (uint32_t polls = 1;; ++polls) {
    __syncwarp();  // so that a line is one memory access
    for_peers<kMaxWorld>(peers, [&](int r) {
      if (writers >> r & 1) units[r] = load_volatile(lines_of(peers, peers.rank, epoch, r) + at);
    });
    bool has_arrived = true;
    for_peers<kMaxWorld>(peers, [&](int r) {
      has_arrived = has_arrived && ((writers >> r & 1) == 0 || units[r].x == epoch);
    });
    if (__all_sync(kAllLanes, threadIdx.x % 8 != kUnitsPerLine || has_arrived)) break;
    if (polls % 1024 == 0 && __any_sync(kAllLanes, is_aborted(peers))) break;
  }
}
/// Calls body(unit, at) for each 16 bytes of the lines that this thread stores. `unit` is the index
/// in a message of `count` units, or `count` for a flag and for the padding of the last line; `at`
/// is the index in the lines.
template <class Body>
__device__ inline void for_line_units(int count, Body body) {
  const int num_units = (count + kUnitsPerLine - 1) / kUnitsPerLine * 8;
  const int step = static_cast<int>(gridDim.x * blockDim.x);
  // Only whole warps skip the loop, because the lanes of a warp store and load lines together.
  for (int base = static_cast<int>(blockIdx.x * blockDim.x) & ~31; base < num_units; base += step) {
    const int at = base + static_cast<int>(threadIdx.x);
    if ((at & ~31) >= num_units) return;
    const int unit = at / 8 * kUnitsPerLine + at % 8;
    body(at % 8 == kUnitsPerLine || unit > count ? count : unit, at);
  }
}
/// A barrier over the ranks for the thread blocks with this blockIdx: what any of them wrote before
/// the barrier is visible to all of them after it.
__device__ inline void rank_barrier(const Peers& peers, int phase, uint32_t epoch) {
  __syncthreads();
  const int r = threadIdx.x;
  if (r < peers.world && r != peers.rank) {
    __threadfence_system();
    asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(flag_of(peers, r, phase, peers.rank)),
                 "r"(epoch)
                 : "memory");
    const uint32_t* const mine = flag_of(peers, peers.rank, phase, r);
    for (uint32_t polls = 1;; ++polls) {
      uint32_t flag;
      asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(flag) : "l"(mine) : "memory");
      if (flag - epoch <= 1) break;  // the peer may already be in the next exchange
      if (polls % 1024 == 0 && is_aborted(peers)) break;
    }
  }
  __syncthreads();
}

// -- sums

/// The elements in a unit of 16 bytes.
template <class T>
__device__ inline Vec<T, kPer16Bytes<T>> elements(const uint4& unit) {
  return bits_as<Vec<T, kPer16Bytes<T>>>(unit);
}

/// round(first + unit_of(0) + unit_of(1) + ...), added in this order in float32. The rank is a
/// constant once the loop is unrolled.
template <class T, int kMaxWorld, class UnitOf>
__device__ inline uint4 sum_of_ranks(int world, UnitOf unit_of, const uint4& first = {}) {
  constexpr int kCount = kPer16Bytes<T>;
  float sum[kCount];
  const auto start = elements<T>(first);
#pragma unroll
  for (int i = 0; i < kCount; ++i) sum[i] = to_float(start.x[i]);
#pragma unroll
  for (int r = 0; r < kMaxWorld; ++r) {
    if (r >= world) break;
    const auto addend = elements<T>(unit_of(r));
#pragma unroll
    for (int i = 0; i < kCount; ++i) sum[i] += to_float(addend.x[i]);
  }
  return bits_as<uint4>(rounded<T>(sum));
}

}  // namespace nanovllm::cuda
