#include <algorithm>

#include "nanovllm/ops/cuda/gemm/hopper/tile_loop.cuh"
#include "nanovllm/ops/cuda/sampling/sampler.cuh"

//   token[r] = argmax over id of x[r] . w[id] / temperature[r] + noise(id)
// for up to 64 plain rows r on Hopper, without noise if a row is greedy: sampling as the epilogue
// of the GEMM that computes the logits, which are never written. A thread block computes tiles of
// 64 rows by 192 ids (tile_loop.cuh). Memory bandwidth bounds it, because w is read once. While the
// next tile of w is copied, the consumer threads compute the noise. The thread blocks share the
// best scores found so far, so that hardly any token needs an exact score.
#pragma nv_diag_suppress 177  // some constants are only used by the code for Hopper
namespace nanovllm::cuda {
namespace {

// -- kernel

struct DrawParams {
  TileParams gemm;  // its args.out is not used
  SampleParams sample;
  RowProgress* progress;  // [num_rows]; the first one counts the thread blocks that have finished
};

/// A thread's search for the best token of a row.
struct RowSearch {
  RowParams params;
  RowProgress* progress;
  float scale;
  bool is_greedy;
  bool is_bad = false;
  BestToken best;
  /// ordered() of the best approximate score of all thread blocks that is known here, or 0. Only
  /// the first thread of a quad has it.
  uint32_t seen = 0;
  float greedy_best = -INFINITY;
  int32_t greedy_id = -1;

  /// `progress` is null if the row does not exist.
  __device__ RowSearch(const RowParams& params_, RowProgress* progress_)
      : params(params_),
        progress(progress_),
        scale(1.0f / params_.temperature),
        is_greedy(params_.temperature < kGreedyTemperature) {}

  /// Adds kCount logits, with ids id .. id + 7, then id + 32 .. id + 39, and so on; the other
  /// threads of the quad have the ids between. Ids from num_ids on do not exist.
  template <int kCount>
  __device__ __forceinline__ void add(const float (&x)[kCount], int32_t id, int32_t num_ids) {
    constexpr int kFours = kCount / 4;
    float floor = known(), zero = 0;
    const auto id_of = [&](int four) { return id + four / 2 * 32 + four % 2 * 4; };
    // 0 * x is 0 for all finite x. For ids that do not exist the GEMM computes 0.
#pragma unroll
    for (int i = 0; i < kCount; ++i) zero = fmaf(x[i], 0, zero);
    if (zero != 0) {
#pragma unroll
      for (int i = 0; i < kCount; ++i) is_bad |= !(x[i] < INFINITY);
    }
    if (is_greedy) {
#pragma unroll
      for (int i = 0; i < kCount; ++i)
        if (x[i] > greedy_best && id_of(i / 4) < num_ids) {
          greedy_best = x[i];
          greedy_id = id_of(i / 4) + i % 4;
        }
      return;
    }
    uint32_t word[kCount];
#pragma unroll
    for (int four = 0; four < kFours; ++four) {
      const uint4 its = noise_words(params, id_of(four));
      word[4 * four] = its.x, word[4 * four + 1] = its.y;
      word[4 * four + 2] = its.z, word[4 * four + 3] = its.w;
    }
    // In the first tile no score is known. Without a floor from the approximate scores, nearly
    // every token would need an exact score.
    if (floor == -INFINITY) {
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        const float approx = __fmul_rn(x[i], scale) + approx_noise(word[i]);
        floor = fmaxf(floor, id_of(i / 4) < num_ids ? approx : -INFINITY);
      }
    }
    // Nearly every token is far below the floor. The few that are not go through one loop, because
    // its code is long.
    uint32_t pass = 0;
#pragma unroll
    for (int four = 0; four < kFours; ++four) {
      const bool may = BestToken::any_may_beat(floor, x + 4 * four, scale, word + 4 * four);
      pass |= static_cast<uint32_t>(may & (id_of(four) < num_ids)) << four;
    }
    for (; pass != 0; pass &= pass - 1) {
      const int four = __ffs(static_cast<int>(pass)) - 1;
      float y[4] = {};
      uint32_t w[4] = {};
#pragma unroll
      for (int i = 0; i < kCount; ++i)
        if (i / 4 == four) y[i % 4] = __fmul_rn(x[i], scale), w[i % 4] = word[i];
      uint32_t may = 0;
#pragma unroll
      for (int i = 0; i < 4; ++i)
        may |= static_cast<uint32_t>((y[i] > -INFINITY) & BestToken::may_beat(floor, y[i], w[i]))
               << i;
#pragma unroll 1
      for (; may != 0; may &= may - 1) {
        const int i = __ffs(static_cast<int>(may)) - 1;
        const auto pick = [&](const auto(&of)[4]) {
          return i < 2 ? (i == 0 ? of[0] : of[1]) : (i == 2 ? of[2] : of[3]);
        };
        best.add(pick(y), pick(w), id_of(four) + i);
      }
    }
  }
  /// Exchanges the best approximate score with the other thread blocks, for the next tile.
  __device__ __forceinline__ void share() {
    float mine = is_greedy ? greedy_best : best.approx();
    mine = quad_reduce(mine, Max());
    if (threadIdx.x % 4 != 0 || progress == nullptr) return;
    if (mine > from_seen(seen))
      seen = max(ordered(mine), atomicMax(&progress->floor, ordered(mine)));
    else seen = __ldcv(&progress->floor);
  }
  __device__ __forceinline__ unsigned long long key() const {
    const float floor = known();
    if (is_greedy)
      return greedy_id < 0 || greedy_best < floor ? 0 : token_key(greedy_best, greedy_id);
    return BestToken::may_win(floor, best.approx()) ? best.key() : 0;
  }

 private:
  __device__ static float from_seen(uint32_t x) { return x == 0 ? -INFINITY : from_ordered(x); }
  __device__ float known() const {
    return from_seen(__shfl_sync(kAllLanes, seen, static_cast<int>(threadIdx.x) % 32 / 4 * 4));
  }
};

using DrawnTile = Tile<kMostDrawn, 192, false>;

/// The epilogue of run_tiles().
struct DrawTile {
  const DrawParams& p;
  int* is_last;  // in shared memory
  RowSearch rows[2];

  __device__ __forceinline__ DrawTile(const DrawParams& p_, int* is_last_)
      : p(p_), is_last(is_last_), rows{search(0), search(1)} {}

  /// The row of the logits that is number `row`, 0 or 1, of this thread. Corner explains the order.
  __device__ int token(int row) const {
    return static_cast<int>(threadIdx.x) % 128 / 32 * 16 + threadIdx.x % 32 / 4 + row * 8;
  }
  __device__ RowSearch search(int row) const {
    if (token(row) >= p.sample.num_rows) return {RowParams{{.temperature = 0}}, nullptr};
    return {p.sample.rows[token(row)], p.progress + token(row)};
  }
  __device__ __forceinline__ void operator()(const Corner& at, const Item&,
                                             const TileSums<DrawnTile>& sums) {
    constexpr int kPairs = DrawnTile::kRowPairs;
    static_assert(DrawnTile::kSplitsRows && kPairs % 4 == 0);
    const int lane = threadIdx.x % 4;
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      if (token(row) - static_cast<int>(threadIdx.x) % 32 / 4 >= p.sample.num_rows) continue;
      float x[2 * kPairs];
#pragma unroll
      for (int j = 0; j < kPairs; j += 4) {
        const uint4 even = gather_columns<DrawnTile>(sums, row, j, 0);
        const uint4 odd = gather_columns<DrawnTile>(sums, row, j, 1);
        const uint32_t words[8] = {even.x, odd.x, even.y, odd.y, even.z, odd.z, even.w, odd.w};
#pragma unroll
        for (int i = 0; i < 8; ++i) x[2 * j + i] = __uint_as_float(words[i]);
      }
      const int32_t first = p.sample.first_id;
      const int32_t num_ids = token(row) < p.sample.num_rows ? first + p.sample.vocab : 0;
      rows[row].add(x, first + at.first_column + 8 * lane, num_ids);
    }
    rows[0].share();
    rows[1].share();
    __syncwarp();
  }
  __device__ __forceinline__ void finish() {
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      unsigned long long key = rows[row].key();
      int flags = rows[row].is_bad ? kRowBad : 0;
      key = quad_reduce(key, Max());
      flags = quad_reduce(flags, [](int a, int b) { return a | b; });
      if (threadIdx.x % 4 != 0 || token(row) >= p.sample.num_rows) continue;
      if (key != 0) {
        atomicMax(&p.progress[token(row)].best, key);
        flags |= kRowHasFinite;
      }
      if (flags != 0) atomicOr(&p.progress[token(row)].flags, flags);
    }
    __threadfence();
    __syncwarp();
    named_barrier_sync(1, DrawnTile::kConsumers);
    if (threadIdx.x == 0)
      *is_last = atomicAdd(&p.progress->num_done, 1) == static_cast<int>(gridDim.x) - 1;
    named_barrier_sync(1, DrawnTile::kConsumers);
    const int row = threadIdx.x;
    if (*is_last == 0 || row >= p.sample.num_rows) return;
    __threadfence();
    const unsigned long long best = __ldcg(&p.progress[row].best);
    const int flags = __ldcg(&p.progress[row].flags);
    p.progress[row] = RowProgress();
    end_plain_row(p.sample, row, best, flags);
  }
};

/// Clusters of two thread blocks take pairs of neighbouring tiles of ids, one pair after the other.
__global__ void __launch_bounds__(DrawnTile::kThreads, 1)
    draw_kernel(const __grid_constant__ DrawParams p) {
  __shared__ int is_last;
  run_tiles<DrawnTile>(p.gemm, [&] { return DrawTile(p, &is_last); });
}

}  // namespace

// -- launcher

bool supports_sample_gemm(const GemmArgs& args, DType dtype) {
  return dtype == DType::kBF16 && args.num_tokens >= kFewestDrawn &&
         args.num_tokens <= kMostDrawn && args.n % 8 == 0 && args.k % 8 == 0;
}

void sample_gemm(Launch where, const GemmArgs& args, const SampleParams& sample,
                 RowProgress* progress) {
  check_args(supports_sample_gemm(args, DType::kBF16) && sample.num_rows == args.num_tokens &&
                 sample.vocab == args.n,
             "sample_gemm: needs bfloat16, 4 to 64 rows, n and k multiples of 8, and a row of "
             "samples for each");
  DrawParams params = {.gemm = {}, .sample = sample, .progress = progress};
  params.gemm.w = tensor_map(args.w, args.n, args.k, DrawnTile::kBoxRows);
  params.gemm.x = tensor_map(args.x, args.num_tokens, args.k, DrawnTile::kHalfTokens);
  params.gemm.args = args;
  params.gemm.group = 1;
  static const int fit = max_tile_blocks_of<DrawnTile>(draw_kernel);
  const int pairs = (args.n + 2 * DrawnTile::kRows - 1) / (2 * DrawnTile::kRows);
  const int clusters = std::min(std::min(fit, where.num_sms) / 2, pairs);
  launch(ClusterLaunch{where, 2}, draw_kernel, blocks_for(2 * clusters), DrawnTile::kThreads,
         static_cast<size_t>(DrawnTile::kSharedBytes), params);
}

}  // namespace nanovllm::cuda
