#include "nanovllm/ops/cuda/experts/experts.h"

#include "nanovllm/ops/cuda/experts/choose.cuh"

// The parts of a mixture of experts around its grouped GEMMs: choosing the experts of each token
// from the router's logits, copying each token's row to the rows of its experts, and adding up the
// experts' results. Memory bandwidth bounds the copies and the sums of many tokens, latency the
// choice and few tokens.
namespace nanovllm::cuda {
namespace {

constexpr int kWarps = 8;  // warps of a thread block

/// Chooses the top_k experts of each token; a warp has a token. The atomic addition to an expert's
/// count gives each choice its row among those of the expert. That order may differ from run to
/// run, but no result depends on it.
template <int kPerLane>
__global__ void __launch_bounds__(kWarps * 32)
    choose_kernel(ExpertChoices c, const float* logits, bool normalizes) {
  begin_kernel();
  const int64_t token = blockIdx.x * kWarps + threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
  if (token >= c.num_tokens) return;
  const Choice choice =
      choose<kPerLane>(logits + token * c.num_experts, c.num_experts, c.top_k, normalizes);
  if (lane >= c.top_k) return;
  const int64_t at = token * c.top_k + lane;
  c.weights[at] = choice.weight;
  c.experts[at] = choice.expert;
  c.places[at] = atomicAdd(&c.counts[choice.expert], 1);
}

/// The first row and the first tile of each expert, in shared memory, since every thread block
/// computes all of them.
struct ExpertRows {
  int row[kMaxExperts + 1], tile[kMaxExperts + 1];

  __device__ void scan(const ExpertChoices& c, const int* counts) {
    if (threadIdx.x < 32) {
      const int lane = threadIdx.x;
      int rows = 0, tiles = 0;
      for (int base = 0; base < c.num_experts; base += 32) {
        const int expert = base + lane;
        const int count = expert < c.num_experts ? counts[expert] : 0;
        const int its_tiles = (count + c.tile_tokens - 1) / c.tile_tokens;
        const int upto = warp_inclusive_scan(count), upto_tiles = warp_inclusive_scan(its_tiles);
        if (expert < c.num_experts) {
          row[expert] = rows + upto - count;
          tile[expert] = tiles + upto_tiles - its_tiles;
        }
        rows += __shfl_sync(kAllLanes, upto, 31);
        tiles += __shfl_sync(kAllLanes, upto_tiles, 31);
      }
      if (lane == 0) row[c.num_experts] = rows, tile[c.num_experts] = tiles;
    }
    __syncthreads();
  }
  __device__ void write_tiles(const ExpertChoices& c) const {
    for (int expert = threadIdx.x; expert < c.num_experts; expert += blockDim.x) {
      const int end = row[expert + 1];
      int first = row[expert];
      for (int at = tile[expert]; first < end; ++at, first += c.tile_tokens)
        c.tiles[at] = {expert, first, min(first + c.tile_tokens, end)};
    }
    if (threadIdx.x == 0) *c.num_tiles = tile[c.num_experts];
  }
};

/// Copies row `token` of x to each of its places.
template <class Unit>
__device__ inline void copy_row(const ExpertChoices& c, const int* places, Unit* rows,
                                const Unit* x, int64_t token, int width) {
  for (int i = threadIdx.x; i < width; i += blockDim.x) {
    const Unit unit = x[token * width + i];
    for (int j = 0; j < c.top_k; ++j) rows[int64_t{places[j]} * width + i] = unit;
  }
}

/// rows[place of each choice of token t] = x[t]. A thread block copies the row of one token to all
/// of its places, and the first one also writes the tiles. A Unit is 16 bytes, or 2 where rows are
/// no multiple of 16 bytes.
template <class Unit>
__global__ void __launch_bounds__(256)
    sort_kernel(ExpertChoices c, Unit* rows, const Unit* x, int width) {
  begin_kernel();
  __shared__ ExpertRows first;
  __shared__ int places[kMaxTopK];
  first.scan(c, c.counts);
  const int64_t token = blockIdx.x;
  if (threadIdx.x < c.top_k) {
    const int64_t at = token * c.top_k + threadIdx.x;
    c.places[at] = places[threadIdx.x] = first.row[c.experts[at]] + c.places[at];
  }
  if (blockIdx.x == 0) first.write_tiles(c);
  __syncthreads();
  copy_row(c, places, rows, x, token, width);
}

/// out[t] = the sum over the choices of token t of weight * rows[place], plus the old out[t] in the
/// rows `added`. The grid is (tokens, parts of a row), and a thread adds N neighbouring columns.
template <class T, int N>
__global__ void __launch_bounds__(256)
    add_kernel(ExpertChoices c, T* out, const T* rows, int width, Range added) {
  begin_kernel();
  __shared__ int places[kMaxTopK];
  __shared__ float weights[kMaxTopK];
  const int64_t token = blockIdx.x;
  if (threadIdx.x < c.top_k) {
    places[threadIdx.x] = c.places[token * c.top_k + threadIdx.x];
    weights[threadIdx.x] = c.weights[token * c.top_k + threadIdx.x];
  }
  if (blockIdx.x == 0 && blockIdx.y == 0)
    for (int i = threadIdx.x; i < c.num_experts; i += blockDim.x) c.counts[i] = 0;
  __syncthreads();
  const int column = static_cast<int>(blockIdx.y * blockDim.x + threadIdx.x) * N;
  if (column >= width) return;
  T* const to = out + token * width + column;
  float sum[N] = {};
#pragma unroll 8
  for (int j = 0; j < c.top_k; ++j) {
    const Vec<T, N> y = load<N>(rows + int64_t{places[j]} * width + column);
#pragma unroll
    for (int i = 0; i < N; ++i) sum[i] += weights[j] * to_float(y.x[i]);
  }
  if (token >= added.first && token < added.first + added.count) {
    const Vec<T, N> old = load<N>(to);
#pragma unroll
    for (int i = 0; i < N; ++i) sum[i] += to_float(old.x[i]);
  }
  store<N>(to, rounded<T>(sum));
}

}  // namespace

// -- launchers

void choose_experts(Launch where, const ExpertChoices& choices, Tensor logits, bool normalizes) {
  check_args(choices.num_experts <= kMaxExperts && choices.top_k <= kMaxTopK &&
                 choices.top_k <= choices.num_experts,
             "choose_experts: more than 512 experts or 32 choices, or more choices than experts");
  const unsigned blocks = blocks_for(choices.num_tokens, kWarps);
  const auto* const from = logits.as<const float>();
  if (choices.num_experts <= 128)
    launch(where, choose_kernel<4>, blocks, kWarps * 32, 0, choices, from, normalizes);
  else
    launch(where, choose_kernel<kMaxExperts / 32>, blocks, kWarps * 32, 0, choices, from,
           normalizes);
}

void sort_tokens(Launch where, const ExpertChoices& choices, Tensor rows, Tensor x) {
  const auto row_bytes = static_cast<int>(x.shape[1]) * static_cast<int>(dtype_size(x.dtype));
  const unsigned blocks = static_cast<unsigned>(choices.num_tokens);
  if (row_bytes % 16 == 0)
    launch(where, sort_kernel<uint4>, blocks, 256, 0, choices, rows.as<uint4>(), x.as<uint4>(),
           row_bytes / 16);
  else
    launch(where, sort_kernel<uint16_t>, blocks, 256, 0, choices, rows.as<uint16_t>(),
           x.as<uint16_t>(), row_bytes / 2);
}

void add_experts(Launch where, const ExpertChoices& choices, Tensor out, Tensor rows, Range added) {
  const auto width = static_cast<int>(out.shape[1]);
  with_float_type(out.dtype, [&](auto type) {
    using T = decltype(type);
    const auto run = [&]<int kN>() {
      // Few tokens are divided among many thread blocks.
      const int threads = choices.num_tokens < where.num_sms ? 64 : 256;
      const dim3 grid(static_cast<unsigned>(choices.num_tokens), blocks_for(width, threads * kN));
      launch(where, add_kernel<T, kN>, grid, threads, 0, choices, out.as<T>(), rows.as<T>(), width,
             added);
    };
    if (width % kPer16Bytes<T> == 0) run.template operator()<kPer16Bytes<T>>();
    else run.template operator()<1>();
  });
}

}  // namespace nanovllm::cuda
