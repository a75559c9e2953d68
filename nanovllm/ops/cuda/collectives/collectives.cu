#include "nanovllm/ops/cuda/collectives/collectives.h"

#include <algorithm>

#include "nanovllm/ops/cuda/collectives/exchange.cuh"

// Sums and gathers over the ranks.
namespace nanovllm::cuda {
namespace {

// -- kernels

constexpr int kLineThreads = 256, kSliceThreads = 512;
constexpr int kLineBlocks = 4;  // on each multiprocessor

/// The message to all other ranks.
template <int kMost>
__device__ void send_lines(const Peers& peers, uint32_t epoch, const uint4* message, int count) {
  for_lines(count, [&](int unit, int at) {
    const uint4 own = unit < count ? message[unit] : uint4{};
    for_peers<kMost>(
        peers, [&](int r) { write_lines(lines_of(peers, r, epoch, peers.rank) + at, own, epoch); });
  });
}

template <class T, int kMost>
__global__ void __launch_bounds__(kLineThreads, kLineBlocks)
    all_reduce_lines_kernel(const __grid_constant__ Peers peers, uint4* x, int count) {
  begin_kernel();
  const uint32_t epoch = current_epoch(peers);
  send_lines<kMost>(peers, epoch, x, count);
  for_lines(count, [&](int unit, int at) {
    const uint4 mine = unit < count ? x[unit] : uint4{};
    uint4 units[kMost];
    read_lines(peers, epoch, at, units);
    const uint4 sum = sum_of_ranks<T, kMost, uint4>(
        peers.world, [&](int r) { return r == peers.rank ? mine : units[r]; });
    if (unit < count) x[unit] = sum;
  });
  end_epoch(peers, epoch);
}

template <int kMost>
__global__ void __launch_bounds__(kLineThreads, kLineBlocks)
    all_gather_lines_kernel(const __grid_constant__ Peers peers, uint4* all, const uint4* mine,
                            int count) {
  begin_kernel();
  const uint32_t epoch = current_epoch(peers);
  send_lines<kMost>(peers, epoch, mine, count);
  for_lines(count, [&](int unit, int at) {
    uint4 units[kMost];
    read_lines(peers, epoch, at, units);
    if (unit >= count) return;
    for_peers<kMost>(peers, [&](int r) { all[int64_t{r} * count + unit] = units[r]; });
    all[int64_t{peers.rank} * count + unit] = mine[unit];
  });
  end_epoch(peers, epoch);
}

template <class T, int kMost>
__global__ void __launch_bounds__(kSliceThreads)
    all_reduce_whole_kernel(const __grid_constant__ Peers peers, uint4* x, int count) {
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
    x[i] = sum_of_ranks<T, kMost, uint4>(peers.world, [&](int r) {
      return r == peers.rank ? x[i] : __ldcg(slice_of(peers, peers.rank, epoch, 0, r) + i);
    });
  });
  end_epoch(peers, epoch);
}

template <class T, int kMost>
__global__ void __launch_bounds__(kSliceThreads)
    all_reduce_slices_kernel(const __grid_constant__ Peers peers, uint4* x, int count) {
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
    const uint4 sum = sum_of_ranks<T, kMost, uint4>(peers.world, [&](int r) {
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
    with_most_ranks(peers.world, [&](auto most) {
      launch(where, all_reduce_lines_kernel<decltype(type), most()>, line_blocks(where, count),
             kLineThreads, 0, peers, x.as<uint4>(), static_cast<int>(count));
    });
  });
}

void all_reduce_whole(Launch where, const Peers& peers, Tensor x) {
  check_args(x.bytes() <= slice_bytes(peers.world) && x.bytes() % 16 == 0,
             "all_reduce: wrong size");
  with_float_type(x.dtype, [&](auto type) {
    with_most_ranks(peers.world, [&](auto most) {
      launch(where, all_reduce_whole_kernel<decltype(type), most()>, kSlicedBlocks, kSliceThreads,
             0, peers, x.as<uint4>(), static_cast<int>(x.bytes() / sizeof(uint4)));
    });
  });
}

void all_reduce_slices(Launch where, const Peers& peers, Tensor x) {
  check_args(x.bytes() <= kSlicedBytes && x.bytes() % 16 == 0, "all_reduce: wrong size");
  with_float_type(x.dtype, [&](auto type) {
    with_most_ranks(peers.world, [&](auto most) {
      launch(where, all_reduce_slices_kernel<decltype(type), most()>, kSlicedBlocks, kSliceThreads,
             0, peers, x.as<uint4>(), static_cast<int>(x.bytes() / sizeof(uint4)));
    });
  });
}

void all_gather_lines(Launch where, const Peers& peers, void* all, const void* mine, size_t bytes) {
  check_args(bytes <= kLineBytes && bytes % sizeof(uint4) == 0, "all_gather: wrong size");
  const size_t count = bytes / sizeof(uint4);
  with_most_ranks(peers.world, [&](auto most) {
    launch(where, all_gather_lines_kernel<most()>, line_blocks(where, count), kLineThreads, 0,
           peers, static_cast<uint4*>(all), static_cast<const uint4*>(mine),
           static_cast<int>(count));
  });
}

void copy_columns(Launch where, float* out, int64_t out_stride, const float* in, int64_t in_stride,
                  const int32_t* rows, int64_t num_rows, int64_t width) {
  if (num_rows == 0 || width == 0) return;
  launch(where, copy_columns_kernel, dim3(8, static_cast<unsigned>(num_rows)), 256, 0, out,
         out_stride, in, in_stride, rows, width);
}

}  // namespace nanovllm::cuda
