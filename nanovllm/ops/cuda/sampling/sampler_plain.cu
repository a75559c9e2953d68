#include <algorithm>

#include "nanovllm/ops/cuda/sampling/sampler.cuh"

//   token[r] = argmax over id of logits[r, id] / temperature[r] + noise(id)
// for plain rows r, which have neither lists nor filters, without noise if a row is greedy. Several
// thread blocks for each row pass once over its logits [vocab], and memory bandwidth bounds them,
// as long as the exact noise is computed for hardly any token (BestToken). The best token is an
// atomic maximum of token_key(), which does not depend on the order.
namespace nanovllm::cuda {
namespace {

// -- kernel

constexpr int kThreads = 256;
constexpr int kBlocksPerSm = 4;

/// The grid is (parts of a row, rows). Each thread takes groups of four logits; a group is one load
/// with N = 4, and four loads with N = 1, where rows are not aligned to 16 bytes.
template <int N>
__global__ void __launch_bounds__(kThreads, kBlocksPerSm)
    plain_kernel(const SampleParams p, RowProgress* progress, int part) {
  __shared__ unsigned long long shared[32];
  __shared__ uint32_t highest;  // the thread block's best approximate score, as ordered()
  begin_kernel();
  const int row = blockIdx.y;
  const RowParams params = p.rows[row];
  if (params.is_plain == 0) return;
  if (threadIdx.x == 0) highest = ordered(-INFINITY);
  __syncthreads();
  const float* logits = p.logits + int64_t{row} * p.vocab;
  const bool greedy = params.temperature < kGreedyTemperature;
  float scale = __fdiv_rn(1.0f, params.temperature);
  asm volatile("" : "+f"(scale));  // keeps the compiler from dividing again for each group
  uint32_t highest_at = shared_address(&highest);
  asm volatile("" : "+r"(highest_at));  // keeps it from computing the address again
  const int first = blockIdx.x * part, last = min(first + part, p.vocab);
  bool is_bad = false;
  BestToken best;
  float greedy_best = -INFINITY;
  int greedy_id = -1;
  const auto fetch = [&](int group) {
    Vec<float, 4> v = {-INFINITY, -INFINITY, -INFINITY, -INFINITY};
    if constexpr (N == 4) {
      if (group < last) v = load<4>(logits + group);
    } else {
#pragma unroll
      for (int i = 0; i < 4; ++i)
        if (group + i < last) v.x[i] = logits[group + i];
    }
    return v;
  };
  constexpr int kPrefetched = 3;  // groups whose loads are in flight
  Vec<float, 4> next[kPrefetched];
#pragma unroll
  for (int i = 0; i < kPrefetched; ++i) next[i] = fetch(first + (i * kThreads + threadIdx.x) * 4);
  for (int base = first; base < last; base += kThreads * 4) {
    const int group = base + static_cast<int>(threadIdx.x) * 4;
    Vec<float, 4> now = next[0];
#pragma unroll
    for (int i = 1; i < kPrefetched; ++i) next[i - 1] = next[i];
    next[kPrefetched - 1] = fetch(group + kPrefetched * kThreads * 4);
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
    // Nearly every token is far below the best that some thread of the thread block has seen.
    const float floor = shared_score(highest_at);
    if (BestToken::any_may_beat(floor, x, scale, word)) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float scaled = __fmul_rn(x[i], scale);
        if (scaled > -INFINITY && BestToken::may_beat(floor, scaled, word[i]))
          best.add(scaled, word[i], p.first_id + group + i);
      }
    }
    const float mine = best.approx();
    if (__any_sync(kAllLanes, mine > floor)) {
      const uint32_t top = __reduce_max_sync(kAllLanes, ordered(mine));
      if (threadIdx.x % 32 == 0) atomicMax(&highest, top);
    }
  }
  const int bad = __syncthreads_or(is_bad);
  unsigned long long key = 0;
  if (greedy) key = greedy_id < 0 ? 0 : token_key(greedy_best, greedy_id);
  else if (BestToken::may_win(from_ordered(highest), best.approx())) key = best.key();
  const unsigned long long top = block_reduce(key, shared, Max());
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

/// Ends plain rows with the best token that any rank has found. A thread has a row.
__global__ void draw_found_kernel(const SampleParams p, const FoundRow* found, int64_t width,
                                  int world) {
  begin_kernel();
  const int row = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (row >= p.num_rows || p.rows[row].is_plain == 0) return;
  unsigned long long best = 0;
  int flags = 0;
  for (int r = 0; r < world; ++r) {
    const FoundRow part = found[r * width + row];
    best = max(best, key_of_found(part));
    flags |= flags_of_found(part);
  }
  finish_row(p, row, best, (flags & kRowBad) != 0 ? kRowBad : flags);
}

}  // namespace

// -- launcher

void sample_plain(Launch where, const SampleParams& params, RowProgress* progress) {
  check_args(params.num_rows > 0 && params.vocab > 0 && params.first_id % 4 == 0,
             "sample_plain: needs rows and columns, and a first id that is a multiple of 4");
  // There are as many thread blocks as run at the same time, but each thread has at least two
  // groups of logits.
  const int wanted = where.num_sms * kBlocksPerSm / params.num_rows;
  const int most = (params.vocab + kThreads * 8 - 1) / (kThreads * 8);
  const int parts = std::clamp(wanted, 1, std::max(most, 1));
  const int part = ((params.vocab + parts - 1) / parts + 3) / 4 * 4;
  const dim3 grid(blocks_for(params.vocab, part), blocks_for(params.num_rows));
  launch(where, params.vocab % 4 == 0 ? plain_kernel<4> : plain_kernel<1>, grid, kThreads, 0,
         params, progress, part);
}

void draw_found(Launch where, const SampleParams& params, Tensor found) {
  check_args(found.dtype == DType::kI64 && found.shape[1] >= params.num_rows,
             "draw_found: found must be int64 [world, rows or more]");
  launch(where, draw_found_kernel, blocks_for(params.num_rows, 128), 128, 0, params,
         found.as<const FoundRow>(), found.shape[1], static_cast<int>(found.shape[0]));
}

}  // namespace nanovllm::cuda
