#include "nanovllm/ops/cuda/collectives/pairs.cuh"

#include "nanovllm/ops/cuda/collectives/exchange.cuh"

//   x = sum over the ranks of their x,
// the all-reduce of few tokens by pairs (pairs.cuh): sum_pairs is its second half; send_pairs is
// its first half for an x that no GEMM has sent. A thread of send_pairs has one element, a thread
// of sum_pairs four neighbouring ones. The latency of the links between the GPUs bounds both,
// because the messages are small.
namespace nanovllm::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kPerUnit = 4;  // elements of the two pairs that a thread loads at once

/// Sends x [count] to all ranks. A thread sends one element, together with its neighbour's.
template <class T>
__global__ void __launch_bounds__(kThreads)
    send_pairs_kernel(const __grid_constant__ Peers peers, const T* x, int count) {
  begin_kernel();
  const int i = blockIdx.x * kThreads + threadIdx.x;
  if (i < count) send_element<T>(peers, current_epoch(peers), i, to_float(x[i]));
}

/// Adds up the pairs of all ranks as soon as their flags have arrived, without waiting for the end
/// of the GEMM. That is safe: the GEMM before this kernel launches it only after its own wait, so
/// whatever came before the GEMM has ended. x may be the residual, an operand of the GEMM, since
/// the GEMM has read each element that it has sent.
template <class T, int kMaxWorld>
__global__ void __launch_bounds__(kThreads)
    sum_pairs_kernel(const __grid_constant__ Peers peers, T* x, int count) {
  launch_dependents();
  const uint32_t epoch = current_epoch(peers);
  const int at = blockIdx.x * kThreads + threadIdx.x;
  if (at < count / kPerUnit) {
    uint4 pairs[kMaxWorld];
    bool has_arrived = false;
    for (uint32_t polls = 1; !has_arrived; ++polls) {
      has_arrived = true;
#pragma unroll
      for (int r = 0; r < kMaxWorld; ++r) {
        if (r >= peers.world) break;
        pairs[r] = load_volatile(
            reinterpret_cast<const uint4*>(pairs_of(peers, peers.rank, epoch, r)) + at);
        has_arrived = has_arrived && pairs[r].y == epoch && pairs[r].w == epoch;
      }
      if (polls % 1024 == 0 && is_aborted(peers)) break;
    }
    float sum[kPerUnit] = {};
#pragma unroll
    for (int r = 0; r < kMaxWorld; ++r) {
      if (r >= peers.world) break;
      const auto addend = bits_as<Vec<T, kPerUnit>>(make_uint2(pairs[r].x, pairs[r].z));
#pragma unroll
      for (int i = 0; i < kPerUnit; ++i) sum[i] += to_float(addend.x[i]);
    }
    store(x + int64_t{at} * kPerUnit, rounded<T>(sum));
  }
  // This wait is for the next kernel: it waits for this kernel to end, and so for the GEMM too.
  wait_for_previous_kernel();
  end_epoch(peers, epoch);
}

}  // namespace

void send_pairs(Launch where, const Peers& peers, Tensor x) {
  check_args(2 * x.bytes() <= kPairsBytes && x.size() % kPerUnit == 0, "send_pairs: too much");
  const auto count = static_cast<int>(x.size());
  with_16bit_type(x.dtype, [&](auto type) {
    using T = decltype(type);
    launch(where, send_pairs_kernel<T>, blocks_for(count, kThreads), kThreads, 0, peers,
           x.as<const T>(), count);
  });
}

void sum_pairs(Launch where, const Peers& peers, Tensor x) {
  check_args(2 * x.bytes() <= kPairsBytes && x.size() % kPerUnit == 0, "sum_pairs: too much");
  const auto count = static_cast<int>(x.size());
  with_16bit_type(x.dtype, [&](auto type) {
    with_max_world(peers.world, [&](auto max_world) {
      using T = decltype(type);
      launch(where, sum_pairs_kernel<T, max_world()>, blocks_for(count, kThreads * kPerUnit),
             kThreads, 0, peers, x.as<T>(), count);
    });
  });
}

}  // namespace nanovllm::cuda
