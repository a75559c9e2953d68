#include <algorithm>

#include "nanovllm/ops/cuda/sampling/sampler.cuh"

// Greedy rows and rows with a temperature: one pass over the logits, several blocks a row. The best
// token is found by an atomic maximum over (score, id), which is the same in any order.
namespace nanovllm::cuda {
namespace {

// -- kernel

constexpr int kThreads = 256;
constexpr int kBlocks = 4;  // on a multiprocessor

/// Grid: parts of a row, rows. N = 4, or 1 where rows do not begin at 16 bytes.
template <int N>
__global__ void __launch_bounds__(kThreads, kBlocks)
    plain_kernel(const SampleParams p, RowProgress* progress, int part) {
  __shared__ unsigned long long shared[32];
  __shared__ uint32_t highest;  // of the block's near scores, ordered
  begin_kernel();
  const int row = blockIdx.y;
  const RowParams params = p.rows[row];
  if (params.is_plain == 0) return;
  if (threadIdx.x == 0) highest = ordered(-INFINITY);
  __syncthreads();
  const float* logits = p.logits + int64_t{row} * p.vocab;
  const bool greedy = params.temperature < kGreedyTemperature;
  float scale = __fdiv_rn(1.0f, params.temperature);
  asm volatile("" : "+f"(scale));  // is not worked out again for each group
  auto highest_at = static_cast<uint32_t>(__cvta_generic_to_shared(&highest));
  asm volatile("" : "+r"(highest_at));  // nor this
  const int first = blockIdx.x * part, last = min(first + part, p.vocab);
  bool is_bad = false;
  BestToken best;
  float greedy_best = -INFINITY;
  int greedy_id = -1;
  const auto fetch = [&](int group) {
    Vec<float, 4> v = {-INFINITY, -INFINITY, -INFINITY, -INFINITY};
    if constexpr (N == 4) {  // whole groups
      if (group < last) v = load<4>(logits + group);
    } else {
#pragma unroll
      for (int i = 0; i < 4; ++i)
        if (group + i < last) v.x[i] = logits[group + i];
    }
    return v;
  };
  constexpr int kAhead = 3;  // groups on their way
  Vec<float, 4> ahead[kAhead];
#pragma unroll
  for (int i = 0; i < kAhead; ++i) ahead[i] = fetch(first + (i * kThreads + threadIdx.x) * 4);
  for (int base = first; base < last; base += kThreads * 4) {
    const int group = base + static_cast<int>(threadIdx.x) * 4;
    Vec<float, 4> now = ahead[0];
#pragma unroll
    for (int i = 1; i < kAhead; ++i) ahead[i - 1] = ahead[i];
    ahead[kAhead - 1] = fetch(group + kAhead * kThreads * 4);
    float(&x)[4] = now.x;
#pragma unroll
    for (int i = 0; i < 4; ++i) is_bad |= !(x[i] < INFINITY);
    if (greedy) {
#pragma unroll
      for (int i = 0; i < 4; ++i)
        if (x[i] > greedy_best) {
          greedy_best = x[i];
          greedy_id = p.first_id + group + i;
        }
      continue;
    }
    const uint4 words = noise_words(params, p.first_id + group);
    const uint32_t word[4] = {words.x, words.y, words.z, words.w};
    // Nearly every token falls below what some thread of the block has seen, by far.
    uint32_t seen;
    asm volatile("ld.volatile.shared.u32 %0, [%1];" : "=r"(seen) : "r"(highest_at));
    const float floor = from_ordered(seen);
    if (BestToken::any_may_beat(floor, x, scale, word)) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float scaled = __fmul_rn(x[i], scale);
        if (scaled > -INFINITY && BestToken::may_beat(floor, scaled, word[i]))
          best.add(scaled, word[i], p.first_id + group + i);
      }
    }
    const float mine = best.near();
    if (__any_sync(0xffffffff, mine > floor)) {
      const uint32_t top = __reduce_max_sync(0xffffffff, ordered(mine));
      if (threadIdx.x % 32 == 0) atomicMax(&highest, top);
    }
  }
  const int bad = __syncthreads_or(is_bad);
  unsigned long long rank = 0;
  if (greedy) rank = greedy_id < 0 ? 0 : rank_of(greedy_best, greedy_id);
  else if (BestToken::may_win(from_ordered(highest), best.near())) rank = best.rank();
  const unsigned long long top = block_max(rank, shared);
  if (threadIdx.x != 0) return;
  RowProgress* const mine = progress + row;
  atomicMax(&mine->best, top);
  atomicOr(&mine->flags, (bad ? kRowBad : 0) | (top != 0 ? kRowHasFinite : 0));
  __threadfence();
  if (atomicAdd(&mine->num_done, 1) != static_cast<int>(gridDim.x) - 1) return;
  __threadfence();
  const unsigned long long all = atomicExch(&mine->best, 0ull);
  const int flags = atomicExch(&mine->flags, 0);
  end_plain_row(p, row, all, flags);
  mine->num_done = 0;
}

/// A thread for each row.
__global__ void draw_found_kernel(const SampleParams p, const FoundRow* found, int64_t width,
                                  int world) {
  begin_kernel();
  const int row = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (row >= p.num_rows || p.rows[row].is_plain == 0) return;
  unsigned long long best = 0;
  int flags = 0;
  for (int r = 0; r < world; ++r) {
    const FoundRow part = found[r * width + row];
    best = max(best, rank_of_found(part));
    flags |= flags_of_found(part);
  }
  finish_row(p, row, best, (flags & kRowBad) != 0 ? kRowBad : flags);
}

}  // namespace

// -- launcher

void sample_plain(Launch where, const SampleParams& params, RowProgress* progress) {
  // What runs at once, and no block with less than a few passes.
  const int wanted = where.num_sms * kBlocks / params.num_rows;
  const int most = (params.vocab + kThreads * 8 - 1) / (kThreads * 8);
  const int parts = std::clamp(wanted, 1, std::max(most, 1));
  const int part = ((params.vocab + parts - 1) / parts + 3) / 4 * 4;
  const dim3 grid(static_cast<unsigned>((params.vocab + part - 1) / part),
                  static_cast<unsigned>(params.num_rows));
  launch(where, params.vocab % 4 == 0 ? plain_kernel<4> : plain_kernel<1>, grid, kThreads, 0,
         params, progress, part);
}

void draw_found(Launch where, const SampleParams& params, Tensor found) {
  launch(where, draw_found_kernel, dim3(static_cast<unsigned>((params.num_rows + 127) / 128)), 128,
         0, params, found.as<const FoundRow>(), found.shape[1], static_cast<int>(found.shape[0]));
}

}  // namespace nanovllm::cuda
