#include "nanovllm/ops/cuda/experts/experts.h"

#include "nanovllm/ops/cuda/elementwise/row_ops.cuh"

namespace nanovllm::cuda {
namespace {

constexpr int kWarps = 8;  // of a thread block

/// What a warp chooses for a token: lane i has choice i.
struct Choice {
  int expert = 0;
  float weight = 0;
};
/// A lane has up to kPerLane of the token's logits, which are in global memory.
template <int kPerLane>
__device__ inline Choice choose(const ExpertChoices& c, const float* logits, bool normalizes) {
  const int lane = threadIdx.x % 32;
  float x[kPerLane];
  float most = -INFINITY;
#pragma unroll
  for (int j = 0; j < kPerLane; ++j) {
    const int id = j * 32 + lane;
    x[j] = id < c.num_experts ? logits[id] : -INFINITY;
    most = fmaxf(most, x[j]);
  }
  most = warp_max(most);
  float sum = 0;
  if (!normalizes) {
#pragma unroll
    for (int j = 0; j < kPerLane; ++j)
      if (j * 32 + lane < c.num_experts) sum += expf(x[j] - most);
    sum = warp_sum(sum);
  }
  uint32_t order[kPerLane];  // 0: has been chosen, or does not exist
#pragma unroll
  for (int j = 0; j < kPerLane; ++j)
    order[j] = j * 32 + lane >= c.num_experts ? 0 : isnan(x[j]) ? 1 : ordered(x[j]);
  Choice mine;
  for (int i = 0; i < c.top_k; ++i) {
    uint32_t best = 0;
    int id = 0;
#pragma unroll
    for (int j = 0; j < kPerLane; ++j)
      if (order[j] > best) best = order[j], id = j * 32 + lane;
    const uint32_t most_of_all = __reduce_max_sync(kAllLanes, best);
    id = __reduce_min_sync(kAllLanes, best == most_of_all ? id : kMaxExperts);
    float logit = 0;
#pragma unroll
    for (int j = 0; j < kPerLane; ++j)
      if (j * 32 + lane == id) logit = x[j], order[j] = 0;
    logit = __shfl_sync(kAllLanes, logit, id % 32);
    if (lane == i) mine = {id, logit};
  }
  const float share = lane < c.top_k ? expf(mine.weight - most) : 0;
  mine.weight = share / (normalizes ? warp_sum(share) : sum);
  return mine;
}

/// A warp chooses the experts of a token.
template <int kPerLane>
__global__ void __launch_bounds__(kWarps * 32)
    choose_kernel(ExpertChoices c, const float* logits, bool normalizes) {
  begin_kernel();
  const int64_t token = blockIdx.x * kWarps + threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
  if (token >= c.num_tokens) return;
  const Choice choice = choose<kPerLane>(c, logits + token * c.num_experts, normalizes);
  if (lane >= c.top_k) return;
  const int64_t at = token * c.top_k + lane;
  c.weights[at] = choice.weight;
  c.experts[at] = choice.expert;
  c.places[at] = atomicAdd(&c.counts[choice.expert], 1);
}

/// The first row and the first tile of each expert, in shared memory: every thread block computes
/// all of them.
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

/// A thread block for each token. A Unit is 16 bytes, or 2 where rows are no multiple of them.
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

// -- few tokens

constexpr int kFewTokens = 4;

/// Norm and logits of few tokens. A warp computes the logits of one expert, whose row of the router
/// it has loaded before the previous kernel has ended. Each thread block norms all tokens itself.
template <class T, int kVectors>
__global__ void __launch_bounds__(kWarps * 32) few_logits_kernel(ExpertChoices c, RouteArgs a) {
  constexpr int kN = kPer16Bytes<T>;
  extern __shared__ __align__(16) unsigned char memory[];
  T* const normed_x = reinterpret_cast<T*>(memory);
  const int width = static_cast<int>(a.x.shape[1]);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int expert = blockIdx.x * kWarps + warp;
  const auto column = [&](int j) { return (j * 32 + lane) * kN; };
  Vec<T, kN> w[kVectors];
#pragma unroll
  for (int j = 0; j < kVectors; ++j) {
    w[j] = {};
    if (expert < c.num_experts && column(j) < width)
      w[j] = load<kN>(static_cast<const T*>(a.router.data) + int64_t{expert} * width + column(j));
  }
  begin_kernel();
  for (int token = warp; token < c.num_tokens; token += kWarps) {
    const T* const from = static_cast<const T*>(a.x.data) + int64_t{token} * width;
    Vec<T, kN> x[kVectors];
    float squares = 0;
#pragma unroll
    for (int j = 0; j < kVectors; ++j)
      if (column(j) < width) {
        x[j] = load<kN>(from + column(j));
        squares = add_squares(x[j], squares);
      }
    const float factor = rms_factor(warp_sum(squares), width, a.eps);
#pragma unroll
    for (int j = 0; j < kVectors; ++j)
      if (column(j) < width) {
        const Vec<T, kN> y = normed(
            x[j], factor, load<kN>(static_cast<const float*>(a.norm_weight.data) + column(j)));
        store<kN>(normed_x + token * width + column(j), y);
        if (blockIdx.x == 0)
          store<kN>(static_cast<T*>(a.normed.data) + int64_t{token} * width + column(j), y);
      }
  }
  __syncthreads();
  for (int token = 0; token < c.num_tokens; ++token) {
    float sum = 0;
#pragma unroll
    for (int j = 0; j < kVectors; ++j)
      if (column(j) < width) {
        const Vec<T, kN> x = load<kN>(normed_x + token * width + column(j));
#pragma unroll
        for (int i = 0; i < kN; ++i) sum += to_float(x.x[i]) * to_float(w[j].x[i]);
      }
    sum = warp_sum(sum);
    if (lane == 0 && expert < c.num_experts)
      static_cast<float*>(a.logits.data)[token * c.num_experts + expert] = sum;
  }
}

/// choose_kernel and sort_kernel for few tokens: each thread block chooses the experts of all of
/// them, a warp for each, and copies the row of one.
template <int kPerLane>
__global__ void __launch_bounds__(kWarps * 32) few_sort_kernel(ExpertChoices c, RouteArgs a) {
  begin_kernel();
  __shared__ ExpertRows first;
  __shared__ int counts[kMaxExperts], experts[kFewTokens * kMaxTopK], places[kMaxTopK];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, token = blockIdx.x;
  for (int i = threadIdx.x; i < c.num_experts; i += blockDim.x) counts[i] = 0;
  Choice choice;
  if (warp < c.num_tokens) {
    choice = choose<kPerLane>(c, static_cast<const float*>(a.logits.data) + warp * c.num_experts,
                              a.normalizes);
    if (lane < c.top_k) experts[warp * c.top_k + lane] = choice.expert;
  }
  __syncthreads();
  const int num_choices = c.num_tokens * c.top_k;
  for (int i = threadIdx.x; i < num_choices; i += blockDim.x) atomicAdd(&counts[experts[i]], 1);
  __syncthreads();
  first.scan(c, counts);
  if (warp == token && lane < c.top_k) {
    const int at = token * c.top_k + lane;
    int place = first.row[choice.expert];
    for (int i = 0; i < at; ++i) place += experts[i] == choice.expert;
    c.places[at] = places[lane] = place;
    c.weights[at] = choice.weight;
  }
  if (blockIdx.x == 0) first.write_tiles(c);
  __syncthreads();
  const int width = static_cast<int>(a.x.shape[1] * 2 / 16);
  copy_row(c, places, static_cast<uint4*>(a.rows.data), static_cast<const uint4*>(a.normed.data),
           token, width);
}

/// Grid: (tokens, parts of a row). A thread adds N neighbouring columns.
template <class T, int N>
__global__ void __launch_bounds__(256)
    add_kernel(ExpertChoices c, T* out, const T* rows, int width, bool adds) {
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
  if (adds) {
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

bool supports_route_few(const ExpertChoices& choices, Tensor x) {
  return choices.num_tokens <= kFewTokens && dtype_size(x.dtype) == 2 && x.shape[1] % 8 == 0 &&
         x.shape[1] <= 4096;
}

void route_few(Launch where, const ExpertChoices& choices, const RouteArgs& args) {
  check_args(supports_route_few(choices, args.x) && choices.num_experts <= kMaxExperts &&
                 choices.top_k <= kMaxTopK && choices.top_k <= choices.num_experts,
             "route_few: a shape that it does not support");
  with_16bit_type(args.x.dtype, [&](auto type) {
    using T = decltype(type);
    const auto run = [&]<int kVectors>() {
      constexpr auto kernel = few_logits_kernel<T, kVectors>;
      allow_shared_memory<kernel>();
      launch(where, kernel, blocks_for(choices.num_experts, kWarps), kWarps * 32, args.x.bytes(),
             choices, args);
    };
    if (args.x.shape[1] <= 2048) run.template operator()<8>();
    else run.template operator()<16>();
  });
  const auto blocks = static_cast<unsigned>(choices.num_tokens);
  constexpr int threads = kWarps * 32;
  if (choices.num_experts <= 128)
    launch(where, few_sort_kernel<4>, blocks, threads, 0, choices, args);
  else launch(where, few_sort_kernel<kMaxExperts / 32>, blocks, threads, 0, choices, args);
}

void add_experts(Launch where, const ExpertChoices& choices, Tensor out, Tensor rows, bool adds) {
  const auto width = static_cast<int>(out.shape[1]);
  with_float_type(out.dtype, [&](auto type) {
    using T = decltype(type);
    const auto run = [&]<int kN>() {
      // Few tokens are divided among many thread blocks.
      const int threads = choices.num_tokens < where.num_sms ? 64 : 256;
      const dim3 grid(static_cast<unsigned>(choices.num_tokens), blocks_for(width, threads * kN));
      launch(where, add_kernel<T, kN>, grid, threads, 0, choices, out.as<T>(), rows.as<T>(), width,
             adds);
    };
    if (width % kPer16Bytes<T> == 0) run.template operator()<kPer16Bytes<T>>();
    else run.template operator()<1>();
  });
}

}  // namespace nanovllm::cuda
