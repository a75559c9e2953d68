#include "nanovllm/ops/cuda/collectives/collectives.h"

#include <algorithm>

#include "nanovllm/ops/cuda/collectives/exchange.cuh"

// All-reduce, x = sum over the ranks of their x, and all-gather, all[r] = mine of rank r, without a
// norm (exchange.cuh has the protocols). Each thread sends and receives units of 16 bytes. Small
// messages are bound by the latency of the links between the GPUs, large ones by their bandwidth.
namespace nanovllm::cuda {
namespace {

// -- kernels

constexpr int kLl128Threads = 256, kTwoShotThreads = 512;
constexpr int kLl128BlocksPerSm = 4;

/// Sends a message of `count` units of 16 bytes to all other ranks.
template <int kMaxWorld>
__device__ void send_lines(const Peers& peers, uint32_t epoch, const uint4* message, int count) {
  for_line_units(count, [&](int unit, int at) {
    const uint4 own = unit < count ? message[unit] : uint4{};
    for_peers<kMaxWorld>(
        peers, [&](int r) { write_line(lines_of(peers, r, epoch, peers.rank) + at, own, epoch); });
  });
}

/// One-shot all-reduce by LL128: every rank sends its x, `count` units of 16 bytes, to all others
/// and adds up what it receives. Every thread keeps the same units throughout.
template <class T, int kMaxWorld>
__global__ void __launch_bounds__(kLl128Threads, kLl128BlocksPerSm)
    all_reduce_one_shot_kernel(const __grid_constant__ Peers peers, uint4* x, int count) {
  begin_kernel();
  const uint32_t epoch = current_epoch(peers);
  send_lines<kMaxWorld>(peers, epoch, x, count);
  for_line_units(count, [&](int unit, int at) {
    const uint4 mine = unit < count ? x[unit] : uint4{};
    uint4 units[kMaxWorld];
    read_lines(peers, epoch, at, units);
    const uint4 sum = sum_of_ranks<T, kMaxWorld>(
        peers.world, [&](int r) { return r == peers.rank ? mine : units[r]; });
    if (unit < count) x[unit] = sum;
  });
  end_epoch(peers, epoch);
}

/// All-gather by LL128: every rank sends its `count` units to all others and stores what it
/// receives. Every thread keeps the same units throughout.
template <int kMaxWorld>
__global__ void __launch_bounds__(kLl128Threads, kLl128BlocksPerSm)
    all_gather_ll128_kernel(const __grid_constant__ Peers peers, uint4* all, const uint4* mine,
                            int count) {
  begin_kernel();
  const uint32_t epoch = current_epoch(peers);
  send_lines<kMaxWorld>(peers, epoch, mine, count);
  for_line_units(count, [&](int unit, int at) {
    uint4 units[kMaxWorld];
    read_lines(peers, epoch, at, units);
    if (unit >= count) return;
    for_peers<kMaxWorld>(peers, [&](int r) { all[int64_t{r} * count + unit] = units[r]; });
    all[int64_t{peers.rank} * count + unit] = mine[unit];
  });
  end_epoch(peers, epoch);
}

/// Two-shot all-reduce with plain stores: rank r sums slice r of x (reduce-scatter) and sends the
/// sum to all others (all-gather). The threads of the grid divide each slice evenly, and a thread
/// block waits only for the thread blocks of the same number on the other ranks.
template <class T, int kMaxWorld>
__global__ void __launch_bounds__(kTwoShotThreads)
    all_reduce_two_shot_kernel(const __grid_constant__ Peers peers, uint4* x, int count) {
  begin_kernel();
  const uint32_t epoch = current_epoch(peers);
  const int slice = (count + peers.world - 1) / peers.world;
  const auto for_slice = [&](int owner, auto body) {
    const int size = min(slice, count - owner * slice);
    for (int i = blockIdx.x * kTwoShotThreads + threadIdx.x; i < size;
         i += kTwoShotBlocks * kTwoShotThreads)
      body(i);
  };
  // Each rank starts with a different peer, so that they do not all use one link at the same time.
  for (int j = 1; j < peers.world; ++j) {
    const int r = (peers.rank + j) % peers.world;
    uint4* const to = slice_of(peers, r, epoch, 0, peers.rank);
    for_slice(r, [&](int i) { to[i] = x[r * slice + i]; });
  }
  rank_barrier(peers, 0, epoch);
  for_slice(peers.rank, [&](int i) {
    uint4* const mine = x + peers.rank * slice + i;
    const uint4 sum = sum_of_ranks<T, kMaxWorld>(peers.world, [&](int r) {
      return r == peers.rank ? *mine : __ldcg(slice_of(peers, peers.rank, epoch, 0, r) + i);
    });
    *mine = sum;
    for (int j = 1; j < peers.world; ++j)
      slice_of(peers, (peers.rank + j) % peers.world, epoch, 1, peers.rank)[i] = sum;
  });
  rank_barrier(peers, 1, epoch);
  for (int j = 1; j < peers.world; ++j) {
    const int r = (peers.rank + j) % peers.world;
    const uint4* const from = slice_of(peers, peers.rank, epoch, 1, r);
    for_slice(r, [&](int i) { x[r * slice + i] = __ldcg(from + i); });
  }
  end_epoch(peers, epoch);
}

/// out[i, j] = in[rows[i], j]. The grid is (parts of a row, rows), and neighbouring threads have
/// neighbouring columns; memory bandwidth bounds it.
__global__ void copy_columns_kernel(float* out, int64_t out_stride, const float* in,
                                    int64_t in_stride, const int32_t* rows, int64_t width) {
  begin_kernel();
  const float* const from = in + (rows ? rows[blockIdx.y] : blockIdx.y) * in_stride;
  for (int64_t i = blockIdx.x * blockDim.x + threadIdx.x; i < width; i += gridDim.x * blockDim.x)
    out[blockIdx.y * out_stride + i] = from[i];
}

/// The number of thread blocks for a message of `count` units by LL128. All of them must run at the
/// same time, because they wait for the other ranks' thread blocks.
unsigned ll128_blocks(Launch where, size_t count) {
  const size_t lines = (count + kUnitsPerLine - 1) / kUnitsPerLine;
  return static_cast<unsigned>(std::min((lines * 8 + kLl128Threads - 1) / kLl128Threads,
                                        static_cast<size_t>(where.num_sms) * kLl128BlocksPerSm));
}

}  // namespace

// -- launchers

size_t pairs_offset(int world) {
  return kFlagBytes + size_t{2} * world * (kLinesBytes + 2 * slice_bytes(world));
}
size_t exchange_buffer_bytes(int world) {
  return pairs_offset(world) + size_t{2} * world * kPairsBytes;
}

void all_reduce_one_shot(Launch where, const Peers& peers, Tensor x) {
  check_args(x.bytes() <= kLl128Bytes && x.bytes() % sizeof(uint4) == 0,
             "all_reduce_one_shot: x must be a multiple of 16 bytes, up to 4 MiB");
  const size_t count = x.bytes() / sizeof(uint4);
  with_float_type(x.dtype, [&](auto type) {
    with_max_world(peers.world, [&](auto max_world) {
      launch(where, all_reduce_one_shot_kernel<decltype(type), max_world()>,
             ll128_blocks(where, count), kLl128Threads, 0, peers, x.as<uint4>(),
             static_cast<int>(count));
    });
  });
}

void all_reduce_two_shot(Launch where, const Peers& peers, Tensor x) {
  check_args(x.bytes() <= kTwoShotBytes && x.bytes() % sizeof(uint4) == 0,
             "all_reduce_two_shot: x must be a multiple of 16 bytes, up to 16 MiB");
  with_float_type(x.dtype, [&](auto type) {
    with_max_world(peers.world, [&](auto max_world) {
      launch(where, all_reduce_two_shot_kernel<decltype(type), max_world()>, kTwoShotBlocks,
             kTwoShotThreads, 0, peers, x.as<uint4>(), static_cast<int>(x.bytes() / sizeof(uint4)));
    });
  });
}

void all_gather_ll128(Launch where, const Peers& peers, void* all, const void* mine, size_t bytes) {
  check_args(bytes <= kLl128Bytes && bytes % sizeof(uint4) == 0,
             "all_gather_ll128: each part must be a multiple of 16 bytes, up to 4 MiB");
  const size_t count = bytes / sizeof(uint4);
  with_max_world(peers.world, [&](auto max_world) {
    launch(where, all_gather_ll128_kernel<max_world()>, ll128_blocks(where, count), kLl128Threads,
           0, peers, static_cast<uint4*>(all), static_cast<const uint4*>(mine),
           static_cast<int>(count));
  });
}

void copy_columns(Launch where, float* out, int64_t out_stride, const float* in, int64_t in_stride,
                  const int32_t* rows, int64_t num_rows, int64_t width) {
  if (num_rows == 0 || width == 0) return;
  launch(where, copy_columns_kernel, dim3(8, blocks_for(num_rows)), 256, 0, out, out_stride, in,
         in_stride, rows, width);
}

}  // namespace nanovllm::cuda
