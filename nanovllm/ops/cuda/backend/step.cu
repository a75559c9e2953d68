#include "nanovllm/ops/cuda/backend/step.h"

#include "nanovllm/ops/cuda/device/device.cuh"

namespace nanovllm::cuda {
namespace {

// -- kernel

constexpr int kThreads = 1024;

/// The sum of all threads' x before this one's, plus `carry`, which becomes the whole sum.
__device__ int running_sum(int x, int& carry, int* shared) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  int sum = x;
#pragma unroll
  for (int i = 1; i < 32; i *= 2) {
    const int other = __shfl_up_sync(0xffffffff, sum, i);
    if (lane >= i) sum += other;
  }
  __syncthreads();
  if (lane == 31) shared[warp] = sum;
  __syncthreads();
  int warps = lane < warp ? shared[lane] : 0, all = shared[lane];
#pragma unroll
  for (int i = 16; i > 0; i /= 2) {
    warps += __shfl_xor_sync(0xffffffff, warps, i);
    all += __shfl_xor_sync(0xffffffff, all, i);
  }
  const int before = carry + warps + sum - x;
  carry += all;
  return before;
}

/// From the host's memory, of which a thread asks for several pieces at once: each of its answers
/// takes a microsecond or more.
__device__ void fetch_input(const BeginStepParams& p) {
  constexpr int kPieces = 4;
  const int count = p.input_bytes / 16;
  for (int base = threadIdx.x; base < count; base += kPieces * kThreads) {
    uint4 pieces[kPieces];
#pragma unroll
    for (int i = 0; i < kPieces; ++i)
      if (const int at = base + i * kThreads; at < count)
        pieces[i] = __ldcv(static_cast<const uint4*>(p.input) + at);
#pragma unroll
    for (int i = 0; i < kPieces; ++i)
      if (const int at = base + i * kThreads; at < count) static_cast<uint4*>(p.to)[at] = pieces[i];
  }
  __syncthreads();
}

/// One block. The next kernel begins when all is there: what a step's kernels read ahead of their
/// own wait is this one's.
__global__ void __launch_bounds__(kThreads) begin_step_kernel(const BeginStepParams p) {
  __shared__ int shared[32];
  wait_before();
  if (threadIdx.x == 0) *p.drawn_at = p.drawn;
  fetch_input(p);
  for (int i = threadIdx.x; i < p.num_updates; i += kThreads) {
    const BlockUpdate update = p.updates[i];
    p.block_tables[int64_t{update.slot} * p.max_blocks + update.index] = update.block;
  }
  DecodeSplits cuts = DecodeSplits::of(p.is_even);
  const auto tiles_of = [&](int s) { return cuts.tiles_of(p.context_lens[s]); };
  int num_tiles = 0;
  for (int base = 0; base < p.num_seqs; base += kThreads) {
    const int s = base + static_cast<int>(threadIdx.x);
    int tiles = 0;
    if (s < p.num_seqs) {
      const int first = p.cu_seqlens_q[s], last = p.cu_seqlens_q[s + 1] - 1;
      if (p.input_ids[last] == kTokenInFlight) p.input_ids[last] = p.last_tokens[p.seq_slots[s]];
      if (first == last) tiles = tiles_of(s) * p.num_kv_heads;
    }
    const int before = running_sum(tiles, num_tiles, shared);
    if (s < p.num_seqs) p.plan.first_tile[s] = before;
  }
  cuts.share_out(num_tiles, p.plan.num_blocks);
  if (threadIdx.x == 0) {
    p.plan.first_tile[p.num_seqs] = num_tiles;
    *p.plan.cuts = cuts;
  }
  __syncthreads();
  for (int b = threadIdx.x; b <= p.plan.num_blocks; b += kThreads) {
    DecodeStart start = {.position = min(cuts.position(b), num_tiles)};
    // The last sequence that begins at or before the cut.
    int low = 0, high = p.num_seqs;
    while (high - low > 1) {
      const int middle = (low + high) / 2;
      (p.plan.first_tile[middle] <= start.position ? low : high) = middle;
    }
    const auto offset = [&] { return start.position - p.plan.first_tile[low]; };
    if (start.position < num_tiles)
      start.position += cuts.shift(offset() % tiles_of(low), tiles_of(low));
    if (start.position < num_tiles) {
      while (p.plan.first_tile[low + 1] <= start.position) ++low;
      start.seq = low;
      start.head = offset() / tiles_of(low);
      start.tile = offset() % tiles_of(low);
      start.context = p.context_lens[low];
      start.slot = p.seq_slots[low];
      start.token = p.cu_seqlens_q[low];
      start.block = p.block_tables[int64_t{start.slot} * p.max_blocks +
                                   start.tile * kDecodeTile / p.block_size];
    }
    p.plan.starts[b] = start;
  }
  __threadfence();
  __syncthreads();
  launch_next();
}

}  // namespace

// -- launcher

void begin_step(Launch where, const BeginStepParams& params) {
  launch(where, begin_step_kernel, 1, kThreads, 0, params);
}

bool has_dependent_launch() {
  cudaFuncAttributes attributes = {};
  cuda_check(cudaFuncGetAttributes(&attributes, begin_step_kernel), "kernels");
  return attributes.ptxVersion >= 90;
}

}  // namespace nanovllm::cuda
