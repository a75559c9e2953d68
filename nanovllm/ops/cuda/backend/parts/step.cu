#include "nanovllm/ops/cuda/backend/parts/step.h"

#include "nanovllm/ops/cuda/device/device.cuh"

// begin_step: one thread block that copies the step's arrays from the host and derives from them
// what every layer needs: a thread for each row, then for each token, then for each range of decode
// attention. More thread blocks would not be faster, because the time is spent in a chain of
// dependent memory accesses.
namespace nanovllm::cuda {
namespace {

// -- kernel

constexpr int kThreads = 1024;
static_assert(kThreads == 32 * 32, "one warp must be able to scan the sums of all warps");

/// The sum of x over all threads with a lower index, plus `carry`. Adds the sum over all threads to
/// `carry`.
__device__ int exclusive_scan(int x, int& carry, int* shared) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int sum = warp_inclusive_scan(x);
  __syncthreads();  // other warps may still read `shared` for the previous call
  if (lane == 31) shared[warp] = sum;
  __syncthreads();
  const int lower_warps = warp_sum(lane < warp ? shared[lane] : 0), all = warp_sum(shared[lane]);
  const int result = carry + lower_warps + sum - x;
  carry += all;
  return result;
}

/// Copies the input from host memory. A read takes a microsecond or more, so each thread starts
/// several reads before it stores the first value.
__device__ void fetch_input(const BeginStepParams& p) {
  constexpr int kReads = 4;
  const int count = p.input_bytes / 16;
  for (int base = threadIdx.x; base < count; base += kReads * kThreads) {
    uint4 values[kReads];
#pragma unroll
    for (int i = 0; i < kReads; ++i)
      if (const int at = base + i * kThreads; at < count)
        values[i] = __ldcv(static_cast<const uint4*>(p.input) + at);
#pragma unroll
    for (int i = 0; i < kReads; ++i)
      if (const int at = base + i * kThreads; at < count) static_cast<uint4*>(p.to)[at] = values[i];
  }
  __syncthreads();
}

/// Derives what rows say: their first token, length and slot, and the token in flight, of which
/// only the newest of a sequence can be one. Counts the tiles of decode attention.
__device__ int derive_rows(const BeginStepParams& p, const DecodeSplits& splits, int* shared) {
  // In a step that only decodes, row s is token s.
  const bool is_decode = p.num_tokens == p.num_seqs;
  int num_tokens = 0, num_tiles = 0;
  for (int base = 0; base < p.num_seqs; base += kThreads) {
    const int s = base + static_cast<int>(threadIdx.x);
    StepRow row = {.slot = -1, .start = 0, .num_tokens = 0, .store = 0};
    if (s < p.num_seqs) row = p.rows[s];
    const int context = row.slot < 0 ? 0 : row.start + row.num_tokens;
    const int tiles = row.num_tokens == 1 ? splits.tiles_of(context) * p.num_kv_heads : 0;
    const int first_tile = exclusive_scan(tiles, num_tiles, shared);
    const int first = is_decode ? s : exclusive_scan(row.num_tokens, num_tokens, shared);
    if (s >= p.num_seqs) break;  // the last iteration
    const int slot = max(row.slot, 0);
    p.plan.first_tile[s] = first_tile;
    p.cu_seqlens_q[s] = first;
    p.context_lens[s] = context;
    p.seq_slots[s] = slot;
    int32_t& last = p.input_ids[first + row.num_tokens - 1];
    if (last == kTokenInFlight) last = p.last_tokens[slot];
  }
  if (threadIdx.x == 0) p.cu_seqlens_q[p.num_seqs] = p.num_tokens;
  return num_tiles;
}

/// Derives what tokens and outputs need; the rows must be derived already.
__device__ void derive_tokens(const BeginStepParams& p) {
  for (int t = threadIdx.x; t < p.num_tokens; t += kThreads) {
    const int s = p.num_tokens == p.num_seqs ? t : last_not_above(p.cu_seqlens_q, p.num_seqs, t);
    const StepRow row = p.rows[s];
    const int position = row.start + t - p.cu_seqlens_q[s];
    p.positions[t] = position;
    int place = -1;
    if (row.store != 0)
      place = p.block_tables[int64_t{row.slot} * p.max_blocks + position / p.block_size] *
                  p.block_size +
              position % p.block_size;
    p.slot_mapping[t] = place;
  }
  for (int i = threadIdx.x; i < p.num_outputs; i += kThreads)
    p.output_rows[i] = p.cu_seqlens_q[p.outputs[i].row] + p.outputs[i].offset;
}

/// Where the work of thread block b of decode attention begins (see DecodePlan). first_tile and the
/// splits must be computed already.
__device__ DecodeStart decode_start(const BeginStepParams& p, const DecodeSplits& splits,
                                    int num_tiles, int b) {
  const auto tiles_of = [&](int s) { return splits.tiles_of(p.context_lens[s]); };
  DecodeStart start = {.position = min(splits.boundary(b), num_tiles)};
  int seq = last_not_above(p.plan.first_tile, p.num_seqs, start.position);
  const auto offset = [&] { return start.position - p.plan.first_tile[seq]; };
  if (start.position < num_tiles)
    start.position += splits.shift(offset() % tiles_of(seq), tiles_of(seq));
  if (start.position == num_tiles) return start;
  while (p.plan.first_tile[seq + 1] <= start.position) ++seq;
  start.seq = seq;
  start.head = offset() / tiles_of(seq);
  start.tile = offset() % tiles_of(seq);
  start.context = p.context_lens[seq];
  start.slot = p.seq_slots[seq];
  start.token = p.cu_seqlens_q[seq];
  start.block =
      p.block_tables[int64_t{start.slot} * p.max_blocks + start.tile * kDecodeTile / p.block_size];
  return start;
}

/// It releases the next kernel only after everything is written, because the kernels of a step may
/// read the step's arrays before they wait for the previous kernel.
__global__ void __launch_bounds__(kThreads) begin_step_kernel(const BeginStepParams p) {
  __shared__ int shared[32];
  wait_for_previous_kernel();
  if (threadIdx.x == 0) *p.drawn_at = p.drawn;
  fetch_input(p);
  for (int i = threadIdx.x; i < p.num_updates; i += kThreads) {
    const BlockUpdate update = p.updates[i];
    p.block_tables[int64_t{update.slot} * p.max_blocks + update.index] = update.block;
  }
  DecodeSplits splits = DecodeSplits::of(p.is_even);
  const int num_tiles = derive_rows(p, splits, shared);
  splits.divide(num_tiles, p.plan.num_blocks);
  if (threadIdx.x == 0) {
    p.plan.first_tile[p.num_seqs] = num_tiles;
    *p.plan.splits = splits;
  }
  __syncthreads();
  derive_tokens(p);
  for (int b = threadIdx.x; b <= p.plan.num_blocks; b += kThreads)
    p.plan.starts[b] = decode_start(p, splits, num_tiles, b);
  __threadfence();
  __syncthreads();
  launch_dependents();
}

}  // namespace

// -- launcher

void begin_step(Launch where, const BeginStepParams& params) {
  check_args(params.input_bytes % 16 == 0, "begin_step: the input must be a multiple of 16 bytes");
  launch(where, begin_step_kernel, 1, kThreads, 0, params);
}

bool has_dependent_launch() {
  cudaFuncAttributes attributes = {};
  cuda_check(cudaFuncGetAttributes(&attributes, begin_step_kernel), "kernels");
  return attributes.ptxVersion >= 90;
}

}  // namespace nanovllm::cuda
