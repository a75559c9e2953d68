#include "nanovllm/ops/cuda/collectives.h"

#include <algorithm>

#include "nanovllm/ops/cuda/device.cuh"

// Exchanges through memory of other GPUs. In lines: 128 bytes that a warp writes at once, the last
// 16 of them a mark, so that whoever sees the mark has the rest; NVLink keeps such a write whole,
// and no fence is needed. In slices: plain writes, a fence, and a flag for each block, which meets
// the same block of the other ranks. Sums are added in the order of the ranks. Source of the lines:
// the LL128 protocol of NCCL, as Hu et al. describe it in "Demystifying NCCL", 2025.
namespace nanovllm::cuda {
namespace {

// -- the exchange buffer

constexpr size_t kFlagBytes = size_t{2} * kSlicedBlocks * kMaxPeers * sizeof(uint32_t);

__host__ __device__ constexpr size_t slice_bytes(int world) {
  return (kSlicedBytes / world + 15) / 16 * 16;
}
/// A line: seven units of 16 bytes and the mark.
constexpr int kUnitsPerLine = 7;
constexpr size_t kLinesBytes = (kLineBytes / 16 / kUnitsPerLine + 4) / 4 * 512;  // whole warps'
/// Lines of rank `from` in a buffer.
__device__ uint4* lines_of(const Peers& peers, int buffer, uint32_t epoch, int from) {
  return reinterpret_cast<uint4*>(peers.buffers[buffer] + kFlagBytes +
                                  kLinesBytes * (epoch % 2 * peers.world + from));
}
/// Slices that rank `from` wrote: `hop` 0, to be summed; 1, sums.
__device__ uint4* slice_of(const Peers& peers, int buffer, uint32_t epoch, int hop, int from) {
  const size_t lines = 2 * kLinesBytes * peers.world;
  return reinterpret_cast<uint4*>(peers.buffers[buffer] + kFlagBytes + lines +
                                  slice_bytes(peers.world) *
                                      ((epoch % 2 * 2 + hop) * peers.world + from));
}
__device__ uint32_t* flag_of(const Peers& peers, int buffer, int hop, int from) {
  return reinterpret_cast<uint32_t*>(peers.buffers[buffer]) +
         (hop * kSlicedBlocks + blockIdx.x) * kMaxPeers + from;
}

// -- waiting

/// Looked at now and then by whoever waits: it lies in the host's memory.
__device__ bool is_dead(const Peers& peers) {
  return *static_cast<const volatile uint32_t*>(peers.aborted) != 0;
}
__device__ uint32_t current_epoch(const Peers& peers) {
  return *static_cast<volatile uint32_t*>(peers.epoch) + 1;
}
/// The block that ends last ends the exchange.
__device__ void end_epoch(const Peers& peers, uint32_t epoch) {
  __syncthreads();
  if (threadIdx.x != 0 || atomicAdd(&peers.epoch[1], 1u) != gridDim.x - 1) return;
  peers.epoch[1] = 0;
  peers.epoch[0] = epoch;
}

/// Each lane of a warp writes its unit, every eighth the mark, which is `epoch`.
__device__ void write_lines(uint4* to, uint4 unit, uint32_t epoch) {
  if (threadIdx.x % 8 == kUnitsPerLine) unit = make_uint4(epoch, epoch, epoch, epoch);
  asm volatile("st.volatile.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(unit.x),
               "r"(unit.y), "r"(unit.z), "r"(unit.w)
               : "memory");
}
__device__ uint4 read_lines(const Peers& peers, const uint4* from, uint32_t epoch) {
  uint4 unit;
  for (uint32_t looks = 1;; ++looks) {
    asm volatile("ld.volatile.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(unit.x), "=r"(unit.y), "=r"(unit.z), "=r"(unit.w)
                 : "l"(from)
                 : "memory");
    if (__all_sync(0xffffffff, threadIdx.x % 8 != kUnitsPerLine || unit.x == epoch)) break;
    if (looks % 1024 == 0 && __any_sync(0xffffffff, is_dead(peers))) break;
  }
  return unit;
}
/// Calls body(unit, line_unit) for each of the thread's 16 bytes: their place in the message (a
/// mark's is `count`, as is that of what only fills a line), and in the lines.
template <class Body>
__device__ void for_lines(int count, Body body) {
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
__device__ void meet(const Peers& peers, int hop, uint32_t epoch) {
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
      if (static_cast<int32_t>(flag - epoch) >= 0) break;
      if (looks % 1024 == 0 && is_dead(peers)) break;
    }
  }
  __syncthreads();
}

// -- kernels

constexpr int kLineThreads = 256, kSliceThreads = 512;
constexpr int kLineBlocks = 4;  // on each multiprocessor

/// Elements that fit an unsigned vector.
template <class T, class Unit>
using Elements = Vec<T, sizeof(Unit) / sizeof(T)>;
template <class T, class Unit>
__device__ Elements<T, Unit> elements(const Unit& unit) {
  return *reinterpret_cast<const Elements<T, Unit>*>(&unit);
}

/// Their sum, which `unit_of(rank)` gives the parts of.
template <class T, class Unit, class UnitOf>
__device__ Unit sum_of_ranks(int world, UnitOf unit_of) {
  constexpr int kCount = sizeof(Unit) / sizeof(T);
  float sum[kCount] = {};
  for (int r = 0; r < world; ++r) {
    const auto part = elements<T>(unit_of(r));
#pragma unroll
    for (int i = 0; i < kCount; ++i) sum[i] += to_float(part.x[i]);
  }
  Elements<T, Unit> out;
#pragma unroll
  for (int i = 0; i < kCount; ++i) out.x[i] = from_float<T>(sum[i]);
  return *reinterpret_cast<Unit*>(&out);
}

template <class T>
__global__ void __launch_bounds__(kLineThreads, kLineBlocks)
    all_reduce_lines_kernel(const Peers peers, uint4* x, int count) {
  begin_kernel();
  const uint32_t epoch = current_epoch(peers);
  for_lines(count, [&](int unit, int at) {
    const uint4 mine = unit < count ? x[unit] : uint4{};
    for (int r = 0; r < peers.world; ++r)
      if (r != peers.rank) write_lines(lines_of(peers, r, epoch, peers.rank) + at, mine, epoch);
  });
  for_lines(count, [&](int unit, int at) {
    const uint4 mine = unit < count ? x[unit] : uint4{};
    const uint4 sum = sum_of_ranks<T, uint4>(peers.world, [&](int r) {
      if (r == peers.rank) return mine;
      return read_lines(peers, lines_of(peers, peers.rank, epoch, r) + at, epoch);
    });
    if (unit < count) x[unit] = sum;
  });
  end_epoch(peers, epoch);
}

/// A block takes whole rows, a warp 28 units of one, whose weights it keeps.
constexpr int kUnitsPerWarp = 4 * kUnitsPerLine, kMaxPieces = 2;  // of a row, for a warp
template <class T, int kPieces>
__global__ void __launch_bounds__(1024)
    sum_norm_lines_kernel(const Peers peers, uint4* out, uint4* x, const float* weight, int width,
                          int num_rows, float eps) {
  constexpr int kCount = sizeof(uint4) / sizeof(T);
  __shared__ float sums[2][32];
  const int warp = threadIdx.x / 32, num_warps = blockDim.x / 32, lane = threadIdx.x % 32;
  const int row_warps = (width + kUnitsPerWarp - 1) / kUnitsPerWarp;
  // Calls body(piece, unit of the row, line unit of the row).
  const auto for_pieces = [&](auto body) {
#pragma unroll
    for (int i = 0; i < kPieces; ++i) {
      const int part = i * num_warps + warp;
      if (part >= row_warps) break;
      const int unit = part * kUnitsPerWarp + lane / 8 * kUnitsPerLine + lane % 8;
      body(i, lane % 8 == kUnitsPerLine || unit > width ? width : unit, part * 32 + lane);
    }
  };
  Vec<float, kCount> w[kPieces] = {};
  for_pieces([&](int i, int unit, int) {
    if (unit < width) w[i] = load<kCount>(weight + unit * kCount);
  });
  begin_kernel();
  const uint32_t epoch = current_epoch(peers);
  for (int row = blockIdx.x; row < num_rows; row += gridDim.x)
    for_pieces([&](int, int unit, int at) {
      const uint4 mine = unit < width ? x[row * width + unit] : uint4{};
      for (int r = 0; r < peers.world; ++r)
        if (r != peers.rank)
          write_lines(lines_of(peers, r, epoch, peers.rank) + row * row_warps * 32 + at, mine,
                      epoch);
    });
  for (int row = blockIdx.x, turn = 0; row < num_rows; row += gridDim.x, turn ^= 1) {
    uint4 sum[kPieces] = {};
    float squares = 0;
    for_pieces([&](int i, int unit, int at) {
      const uint4 mine = unit < width ? x[row * width + unit] : uint4{};
      sum[i] = sum_of_ranks<T, uint4>(peers.world, [&](int r) {
        if (r == peers.rank) return mine;
        return read_lines(peers, lines_of(peers, peers.rank, epoch, r) + row * row_warps * 32 + at,
                          epoch);
      });
      if (unit >= width) return;
      x[row * width + unit] = sum[i];
      const auto part = elements<T>(sum[i]);
#pragma unroll
      for (int j = 0; j < kCount; ++j) squares += to_float(part.x[j]) * to_float(part.x[j]);
    });
    const float scale =
        rsqrtf(block_sum(squares, sums[turn]) / static_cast<float>(width * kCount) + eps);
    for_pieces([&](int i, int unit, int) {
      if (unit >= width) return;
      auto part = elements<T>(sum[i]);
#pragma unroll
      for (int j = 0; j < kCount; ++j)
        part.x[j] = from_float<T>(to_float(part.x[j]) * scale * w[i].x[j]);
      out[row * width + unit] = *reinterpret_cast<uint4*>(&part);
    });
  }
  end_epoch(peers, epoch);
}

__global__ void __launch_bounds__(kLineThreads, kLineBlocks)
    all_gather_lines_kernel(const Peers peers, uint4* all, const uint4* mine, int count) {
  begin_kernel();
  const uint32_t epoch = current_epoch(peers);
  for_lines(count, [&](int unit, int at) {
    const uint4 own = unit < count ? mine[unit] : uint4{};
    for (int r = 0; r < peers.world; ++r)
      if (r != peers.rank) write_lines(lines_of(peers, r, epoch, peers.rank) + at, own, epoch);
  });
  for (int r = 0; r < peers.world; ++r)
    for_lines(count, [&](int unit, int at) {
      uint4 part = {};
      if (r != peers.rank)
        part = read_lines(peers, lines_of(peers, peers.rank, epoch, r) + at, epoch);
      else if (unit < count) part = mine[unit];
      if (unit < count) all[int64_t{r} * count + unit] = part;
    });
  end_epoch(peers, epoch);
}

template <class T>
__global__ void __launch_bounds__(kSliceThreads)
    all_reduce_whole_kernel(const Peers peers, uint4* x, int count) {
  begin_kernel();
  const uint32_t epoch = current_epoch(peers);
  const auto for_units = [&](auto body) {
    for (int i = blockIdx.x * kSliceThreads + threadIdx.x; i < count;
         i += gridDim.x * kSliceThreads)
      body(i);
  };
  for_units([&](int i) {
    const uint4 mine = x[i];
    for (int r = 0; r < peers.world; ++r)
      if (r != peers.rank) slice_of(peers, r, epoch, 0, peers.rank)[i] = mine;
  });
  meet(peers, 0, epoch);
  for_units([&](int i) {
    x[i] = sum_of_ranks<T, uint4>(peers.world, [&](int r) {
      return r == peers.rank ? x[i] : __ldcg(slice_of(peers, peers.rank, epoch, 0, r) + i);
    });
  });
  end_epoch(peers, epoch);
}

template <class T>
__global__ void __launch_bounds__(kSliceThreads)
    all_reduce_slices_kernel(const Peers peers, uint4* x, int count) {
  begin_kernel();
  const uint32_t epoch = current_epoch(peers);
  const int slice = (count + peers.world - 1) / peers.world;
  const auto for_slice = [&](int owner, auto body) {
    const int size = min(slice, count - owner * slice);
    for (int i = blockIdx.x * kSliceThreads + threadIdx.x; i < size;
         i += kSlicedBlocks * kSliceThreads)
      body(i);
  };
  // Each begins with another peer.
  for (int j = 1; j < peers.world; ++j) {
    const int r = (peers.rank + j) % peers.world;
    uint4* const to = slice_of(peers, r, epoch, 0, peers.rank);
    for_slice(r, [&](int i) { to[i] = x[r * slice + i]; });
  }
  meet(peers, 0, epoch);
  for_slice(peers.rank, [&](int i) {
    uint4* const mine = x + peers.rank * slice + i;
    const uint4 sum = sum_of_ranks<T, uint4>(peers.world, [&](int r) {
      return r == peers.rank ? *mine : __ldcg(slice_of(peers, peers.rank, epoch, 0, r) + i);
    });
    *mine = sum;
    for (int j = 1; j < peers.world; ++j)
      slice_of(peers, (peers.rank + j) % peers.world, epoch, 1, peers.rank)[i] = sum;
  });
  meet(peers, 1, epoch);
  for (int j = 1; j < peers.world; ++j) {
    const int r = (peers.rank + j) % peers.world;
    const uint4* const from = slice_of(peers, peers.rank, epoch, 1, r);
    for_slice(r, [&](int i) { x[r * slice + i] = __ldcg(from + i); });
  }
  end_epoch(peers, epoch);
}

/// Grid: parts of a row, rows.
__global__ void copy_columns_kernel(float* out, int64_t out_stride, const float* in,
                                    int64_t in_stride, const int32_t* rows, int64_t width) {
  begin_kernel();
  const float* const from = in + (rows ? rows[blockIdx.y] : blockIdx.y) * in_stride;
  for (int64_t i = blockIdx.x * blockDim.x + threadIdx.x; i < width; i += gridDim.x * blockDim.x)
    out[blockIdx.y * out_stride + i] = from[i];
}

/// Warps that a row's lines take.
int64_t sum_norm_warps(const Tensor& x) {
  const int64_t units = x.shape[1] * static_cast<int64_t>(dtype_size(x.dtype)) / 16;
  return (units + kUnitsPerWarp - 1) / kUnitsPerWarp;
}

/// Blocks for `count` units in lines, as many as are there at once: they wait for each other's.
unsigned line_blocks(Launch where, size_t count) {
  const size_t lines = (count + kUnitsPerLine - 1) / kUnitsPerLine;
  return static_cast<unsigned>(std::min((lines * 8 + kLineThreads - 1) / kLineThreads,
                                        static_cast<size_t>(where.num_sms) * kLineBlocks));
}

}  // namespace

// -- launchers

size_t exchange_buffer_bytes(int world) {
  return kFlagBytes + size_t{2} * world * (kLinesBytes + 2 * slice_bytes(world));
}

void all_reduce_lines(Launch where, const Peers& peers, Tensor x) {
  check_args(x.bytes() <= kLineBytes && x.bytes() % 16 == 0, "all_reduce: wrong size");
  const size_t count = x.bytes() / sizeof(uint4);
  with_float_type(x.dtype, [&](auto type) {
    launch(where, all_reduce_lines_kernel<decltype(type)>, line_blocks(where, count), kLineThreads,
           0, peers, x.as<uint4>(), static_cast<int>(count));
  });
}

bool serves_sum_norm(const Tensor& x) {
  if (x.shape[1] * static_cast<int64_t>(dtype_size(x.dtype)) % 16 != 0) return false;
  const int64_t row_warps = sum_norm_warps(x);
  return row_warps <= 32 * kMaxPieces &&
         static_cast<size_t>(x.shape[0] * row_warps * 512) <= kLinesBytes;
}

void sum_norm_lines(Launch where, const Peers& peers, Tensor out, Tensor x, const Norm& norm) {
  check_args(serves_sum_norm(x) && out.shape == x.shape && norm.weight.size() == x.shape[1] &&
                 norm.weight.dtype == DType::kF32,
             "sum_norm: wrong shapes");
  const auto row_warps = static_cast<int>(sum_norm_warps(x));
  const int threads = 32 * (row_warps <= 32 ? row_warps : (row_warps + 1) / 2);
  // All blocks are there at once, since they wait for the other ranks' blocks.
  const int64_t fit = int64_t{where.num_sms} * (1024 / threads);
  with_float_type(x.dtype, [&](auto type) {
    using T = decltype(type);
    launch(where, row_warps <= 32 ? sum_norm_lines_kernel<T, 1> : sum_norm_lines_kernel<T, 2>,
           dim3(static_cast<unsigned>(std::min(x.shape[0], fit))), threads, 0, peers,
           out.as<uint4>(), x.as<uint4>(), norm.weight.as<const float>(),
           static_cast<int>(x.shape[1] * static_cast<int64_t>(dtype_size(x.dtype)) / 16),
           static_cast<int>(x.shape[0]), norm.eps);
  });
}

void all_reduce_whole(Launch where, const Peers& peers, Tensor x) {
  check_args(x.bytes() <= slice_bytes(peers.world) && x.bytes() % 16 == 0,
             "all_reduce: wrong size");
  with_float_type(x.dtype, [&](auto type) {
    launch(where, all_reduce_whole_kernel<decltype(type)>, kSlicedBlocks, kSliceThreads, 0, peers,
           x.as<uint4>(), static_cast<int>(x.bytes() / sizeof(uint4)));
  });
}

void all_reduce_slices(Launch where, const Peers& peers, Tensor x) {
  check_args(x.bytes() <= kSlicedBytes && x.bytes() % 16 == 0, "all_reduce: wrong size");
  with_float_type(x.dtype, [&](auto type) {
    launch(where, all_reduce_slices_kernel<decltype(type)>, kSlicedBlocks, kSliceThreads, 0, peers,
           x.as<uint4>(), static_cast<int>(x.bytes() / sizeof(uint4)));
  });
}

void all_gather_lines(Launch where, const Peers& peers, void* all, const void* mine, size_t bytes) {
  check_args(bytes <= kLineBytes && bytes % sizeof(uint4) == 0, "all_gather: wrong size");
  const size_t count = bytes / sizeof(uint4);
  launch(where, all_gather_lines_kernel, line_blocks(where, count), kLineThreads, 0, peers,
         static_cast<uint4*>(all), static_cast<const uint4*>(mine), static_cast<int>(count));
}

void copy_columns(Launch where, float* out, int64_t out_stride, const float* in, int64_t in_stride,
                  const int32_t* rows, int64_t num_rows, int64_t width) {
  if (num_rows == 0 || width == 0) return;
  launch(where, copy_columns_kernel, dim3(8, static_cast<unsigned>(num_rows)), 256, 0, out,
         out_stride, in, in_stride, rows, width);
}

}  // namespace nanovllm::cuda
