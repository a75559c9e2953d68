#include <algorithm>

#include "nanovllm/ops/cuda/sampler.cuh"

// Greedy rows and rows with a temperature: one pass over the logits, several blocks a row. The best
// token is found by an atomic maximum over (score, id), which is the same in any order.
namespace nanovllm::cuda {
namespace {

// -- kernel

constexpr int kThreads = 256;

/// Grid: parts of a row, rows. N = 4, or 1 where rows do not begin at 16 bytes.
template <int N>
__global__ void __launch_bounds__(kThreads)
    plain_kernel(const SampleParams p, RowProgress* progress, int part) {
  __shared__ unsigned long long shared[32];
  begin_kernel();
  const int row = blockIdx.y;
  const RowParams params = p.rows[row];
  if (params.is_plain == 0) return;
  const float* logits = p.logits + int64_t{row} * p.vocab;
  const bool greedy = params.temperature < kGreedyTemperature;
  const float scale = __fdiv_rn(1.0f, params.temperature);
  const int first = blockIdx.x * part, last = min(first + part, p.vocab);
  int flags = 0;
  BestToken best;
  unsigned long long greedy_best = 0;
  for (int group = first + threadIdx.x * 4; group < last; group += kThreads * 4) {
    float x[4];
    if constexpr (N == 4) {
      const float4 v = __ldcs(reinterpret_cast<const float4*>(logits + group));
      x[0] = v.x, x[1] = v.y, x[2] = v.z, x[3] = v.w;
    } else {
#pragma unroll
      for (int i = 0; i < 4; ++i) x[i] = group + i < last ? logits[group + i] : -INFINITY;
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) flags |= flags_of(x[i]);
    if (greedy) {
#pragma unroll
      for (int i = 0; i < 4; ++i)
        if (x[i] > -INFINITY) greedy_best = max(greedy_best, rank_of(x[i], group + i));
      continue;
    }
    const uint4 words = philox4x32_10(
        make_uint4(static_cast<uint32_t>(group) / 4, params.position, params.choice, 0),
        params.key[0], params.key[1]);
    const uint32_t word[4] = {words.x, words.y, words.z, words.w};
#pragma unroll
    for (int i = 0; i < 4; ++i)
      if (x[i] > -INFINITY) best.add(__fmul_rn(x[i], scale), word[i], group + i);
  }
  const int bad = __syncthreads_or(flags & kRowBad);
  const int finite = __syncthreads_or(flags & kRowHasFinite);
  const unsigned long long top = block_max(greedy ? greedy_best : best.rank(), shared);
  if (threadIdx.x != 0) return;
  RowProgress* const mine = progress + row;
  atomicMax(&mine->best, top);
  atomicOr(&mine->flags, (bad ? kRowBad : 0) | (finite ? kRowHasFinite : 0));
  __threadfence();
  if (atomicAdd(&mine->num_done, 1) != static_cast<int>(gridDim.x) - 1) return;
  __threadfence();
  finish_row(p, row, atomicExch(&mine->best, 0ull), atomicExch(&mine->flags, 0));
  mine->num_done = 0;
}

}  // namespace

// -- launcher

void sample_plain(Launch where, const SampleParams& params, RowProgress* progress) {
  // Enough blocks for every multiprocessor, none with less than a few passes.
  const int wanted = (where.num_sms * 4 + params.num_rows - 1) / params.num_rows;
  const int most = (params.vocab + kThreads * 8 - 1) / (kThreads * 8);
  const int parts = std::clamp(wanted, 1, std::max(most, 1));
  const int part = ((params.vocab + parts - 1) / parts + 3) / 4 * 4;
  const dim3 grid(static_cast<unsigned>((params.vocab + part - 1) / part),
                  static_cast<unsigned>(params.num_rows));
  launch(where, params.vocab % 4 == 0 ? plain_kernel<4> : plain_kernel<1>, grid, kThreads, 0,
         params, progress, part);
}

}  // namespace nanovllm::cuda
