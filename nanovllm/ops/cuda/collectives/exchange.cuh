#pragma once

#include "nanovllm/ops/cuda/collectives/collectives.h"
#include "nanovllm/ops/cuda/device/device.cuh"

// Exchanges through memory of other GPUs. In lines: 128 bytes that a warp writes at once, the last
// 16 of them a mark, so that whoever sees the mark has the rest; NVLink keeps such a write whole,
// and no fence is needed. In slices: plain writes, a fence, and a flag for each block, which meets
// the same block of the other ranks. Sums are added in the order of the ranks. Source of the lines:
// the LL128 protocol of NCCL, as Hu et al. describe it in "Demystifying NCCL", 2025.
namespace nanovllm::cuda {

// -- the exchange buffer

constexpr size_t kFlagBytes = size_t{2} * kSlicedBlocks * kMaxPeers * sizeof(uint32_t);

__host__ __device__ constexpr size_t slice_bytes(int world) {
  return (kSlicedBytes / world + 15) / 16 * 16;
}
/// A line: seven units of 16 bytes and the mark.
constexpr int kUnitsPerLine = 7;
constexpr size_t kLinesBytes = (kLineBytes / 16 / kUnitsPerLine + 4) / 4 * 512;  // whole warps'
/// Lines of rank `from` in a buffer.
__device__ inline uint4* lines_of(const Peers& peers, int buffer, uint32_t epoch, int from) {
  return reinterpret_cast<uint4*>(peers.buffers[buffer] + kFlagBytes +
                                  kLinesBytes * (epoch % 2 * peers.world + from));
}
/// Slices that rank `from` wrote: `hop` 0, to be summed; 1, sums.
__device__ inline uint4* slice_of(const Peers& peers, int buffer, uint32_t epoch, int hop,
                                  int from) {
  const size_t lines = 2 * kLinesBytes * peers.world;
  return reinterpret_cast<uint4*>(peers.buffers[buffer] + kFlagBytes + lines +
                                  slice_bytes(peers.world) *
                                      ((epoch % 2 * 2 + hop) * peers.world + from));
}
__device__ inline uint32_t* flag_of(const Peers& peers, int buffer, int hop, int from) {
  return reinterpret_cast<uint32_t*>(peers.buffers[buffer]) +
         (hop * kSlicedBlocks + blockIdx.x) * kMaxPeers + from;
}

// -- waiting

/// Calls body(rank) for each other rank, of kMost at most; a constant where it is inlined.
template <int kMost, class Body>
__device__ inline void for_peers(const Peers& peers, Body body) {
#pragma unroll
  for (int r = 0; r < kMost; ++r)
    if (r < peers.world && r != peers.rank) body(r);
}
/// Calls body with the next larger kMost that kernels are compiled for, as an integral_constant.
template <class Body>
void with_most_ranks(int world, Body body) {
  if (world <= 2) body(std::integral_constant<int, 2>());
  else if (world <= 4) body(std::integral_constant<int, 4>());
  else body(std::integral_constant<int, kMaxPeers>());
}

/// Looked at now and then by whoever waits: it lies in the host's memory.
__device__ inline bool is_dead(const Peers& peers) {
  return *static_cast<const volatile uint32_t*>(peers.aborted) != 0;
}
__device__ inline uint32_t current_epoch(const Peers& peers) {
  return *static_cast<volatile uint32_t*>(peers.epoch) + 1;
}
/// The block that ends last ends the exchange.
__device__ inline void end_epoch(const Peers& peers, uint32_t epoch) {
  __syncthreads();
  if (threadIdx.x != 0 || atomicAdd(&peers.epoch[1], 1u) != gridDim.x - 1) return;
  peers.epoch[1] = 0;
  peers.epoch[0] = epoch;
}

/// Each lane of a warp writes its unit, every eighth the mark, which is `epoch`.
__device__ inline void write_lines(uint4* to, uint4 unit, uint32_t epoch) {
  if (threadIdx.x % 8 == kUnitsPerLine) unit = make_uint4(epoch, epoch, epoch, epoch);
  __syncwarp();  // a line is one access
  asm volatile("st.volatile.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(unit.x),
               "r"(unit.y), "r"(unit.z), "r"(unit.w)
               : "memory");
}
/// What another GPU may have written.
__device__ inline uint4 load_fresh(const uint4* from) {
  uint4 unit;
  asm volatile("ld.volatile.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(unit.x), "=r"(unit.y), "=r"(unit.z), "=r"(unit.w)
               : "l"(from)
               : "memory");
  return unit;
}
/// What each peer wrote to unit `at` of its lines here, in units[its rank]; of those alone whose
/// bit is in `writers`, the same in all lanes. All are asked for at once.
template <int kMost>
__device__ inline void read_lines(const Peers& peers, uint32_t epoch, int at, uint4 (&units)[kMost],
                                  uint32_t writers = ~0u) {
  for (uint32_t looks = 1;; ++looks) {
    __syncwarp();  // a line is one access
    for_peers<kMost>(peers, [&](int r) {
      if (writers >> r & 1) units[r] = load_fresh(lines_of(peers, peers.rank, epoch, r) + at);
    });
    bool is_there = true;
    for_peers<kMost>(peers, [&](int r) {
      is_there = is_there && ((writers >> r & 1) == 0 || units[r].x == epoch);
    });
    if (__all_sync(0xffffffff, threadIdx.x % 8 != kUnitsPerLine || is_there)) break;
    if (looks % 1024 == 0 && __any_sync(0xffffffff, is_dead(peers))) break;
  }
}
/// Calls body(unit, line_unit) for each of the thread's 16 bytes: their place in the message (a
/// mark's is `count`, as is that of what only fills a line), and in the lines.
template <class Body>
__device__ inline void for_lines(int count, Body body) {
  const int num_units = (count + kUnitsPerLine - 1) / kUnitsPerLine * 8;
  const int step = static_cast<int>(gridDim.x * blockDim.x);
  // Whole warps take part, as others may wait for their lines.
  for (int base = static_cast<int>(blockIdx.x * blockDim.x) & ~31; base < num_units; base += step) {
    const int at = base + static_cast<int>(threadIdx.x);
    if ((at & ~31) >= num_units) return;
    const int unit = at / 8 * kUnitsPerLine + at % 8;
    body(at % 8 == kUnitsPerLine || unit > count ? count : unit, at);
  }
}
/// All blocks of this number, one a rank, have written what came before.
__device__ inline void meet(const Peers& peers, int hop, uint32_t epoch) {
  __syncthreads();
  const int r = threadIdx.x;
  if (r < peers.world && r != peers.rank) {
    __threadfence_system();
    asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(flag_of(peers, r, hop, peers.rank)),
                 "r"(epoch)
                 : "memory");
    const uint32_t* const mine = flag_of(peers, peers.rank, hop, r);
    for (uint32_t looks = 1;; ++looks) {
      uint32_t flag;
      asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(flag) : "l"(mine) : "memory");
      if (flag - epoch <= 1) break;  // a peer is one exchange ahead at most; others set no flags
      if (looks % 1024 == 0 && is_dead(peers)) break;
    }
  }
  __syncthreads();
}

// -- sums

/// Elements that fit an unsigned vector.
template <class T, class Unit>
using Elements = Vec<T, sizeof(Unit) / sizeof(T)>;
template <class T, class Unit>
__device__ inline Elements<T, Unit> elements(const Unit& unit) {
  return *reinterpret_cast<const Elements<T, Unit>*>(&unit);
}

/// The sum of `first` and what `unit_of(rank)` gives; the rank is a constant where it is inlined.
template <class T, int kMost, class Unit, class UnitOf>
__device__ inline Unit sum_of_ranks(int world, UnitOf unit_of, const Unit& first = {}) {
  constexpr int kCount = sizeof(Unit) / sizeof(T);
  float sum[kCount];
  const auto start = elements<T>(first);
#pragma unroll
  for (int i = 0; i < kCount; ++i) sum[i] = to_float(start.x[i]);
#pragma unroll
  for (int r = 0; r < kMost; ++r) {
    if (r >= world) break;
    const auto part = elements<T>(unit_of(r));
#pragma unroll
    for (int i = 0; i < kCount; ++i) sum[i] += to_float(part.x[i]);
  }
  Elements<T, Unit> out;
#pragma unroll
  for (int i = 0; i < kCount; ++i) out.x[i] = from_float<T>(sum[i]);
  return *reinterpret_cast<Unit*>(&out);
}

}  // namespace nanovllm::cuda
