#pragma once

#include <algorithm>

#include "nanovllm/ops/cuda/collectives/pairs.cuh"
#include "nanovllm/ops/cuda/experts/choose.cuh"
#include "nanovllm/ops/cuda/experts/experts.h"
#include "nanovllm/ops/cuda/gemm/swiglu_items.cuh"

// The GEMMs of a mixture of experts for few tokens (few_experts.cu), for each format of the
// weights. Gate and up are items of few_items.cuh. Down has a loop of its own, because a warp's
// chunks belong to several weights, and the products of each chunk get the weight of its expert. A
// weight that is not quantized is a QuantizedWeight with only `values`, `n` and `k`. The rows of
// all experts follow each other.
namespace nanovllm::cuda {

constexpr int kMaxChoices = 64;  // the most choices of all tokens together

/// The arguments of the three kernels.
struct FewExpertsParams {
  const void *x, *router;         // [T, hidden]; [num_experts, hidden]
  const float* norm;              // [hidden] or null: x is the normed x already
  QuantizedWeight gate_up, down;  // for each expert [2 n, hidden] and [hidden, n]
  void* normed;                   // [T, hidden]
  float* logits;                  // [T, num_experts]
  const int32_t* context_lens;    // [T] or null: a token where it is 0 chooses no expert
  void* act;                      // [T * top_k, n]
  void* out;                      // [T, hidden]
  int first_added, last_added;    // the rows of out to whose old values the sum is added
  int num_tokens, num_experts, top_k, hidden, n;
  float eps;
  bool normalizes;
  Peers peers;  // if there are several, the sum is sent to them
};

// -- the chosen experts

/// The chosen experts, in shared memory, since every thread block finds them itself.
struct ChosenExperts {
  // The different experts, in the order in which tokens chose them first. For each of them and each
  // token there are the weight and the row of act, or 0 and -1 if the token did not choose it.
  alignas(16) float weights[kMaxChoices][kMaxTokens];
  int8_t rows[kMaxChoices][kMaxTokens];
  int experts[kMaxChoices];
  int count;
  // All choices in the order of the tokens.
  int expert_of[kMaxChoices], index_of[kMaxChoices];
  float weight_of[kMaxChoices];
  int first_choice[kMaxExperts];  // the first choice of an expert
  // If there is only one token, its logits and their choice_order().
  float logits[kMaxExperts];
  alignas(16) uint32_t order[kMaxExperts];

  __device__ void clear() {
    for (int i = threadIdx.x; i < kMaxExperts; i += kFewThreads) first_choice[i] = kMaxChoices;
    for (int i = threadIdx.x; i < kMaxChoices * kMaxTokens; i += kFewThreads)
      rows[i / kMaxTokens][i % kMaxTokens] = -1, weights[i / kMaxTokens][i % kMaxTokens] = 0;
    __syncthreads();
  }
  /// Finds the chosen experts, after clear() and when the logits have been written. For one token
  /// it computes the weights only if `weighs`.
  template <int kPerLane>
  __device__ void find(const FewExpertsParams& p, bool weighs) {
    if (p.num_tokens == 1) find_of_one<kPerLane>(p, weighs);
    else find_of_several<kPerLane>(p);
  }

 private:
  /// All threads find the choices of one token at once: the place of a logit is the number of
  /// better ones.
  template <int kPerLane>
  __device__ void find_of_one(const FewExpertsParams& p, bool weighs) {
    constexpr int kMost = kPerLane * 32;
    for (int i = threadIdx.x; i < kMost; i += kFewThreads) {
      logits[i] = i < p.num_experts ? p.logits[i] : 0;
      order[i] = i < p.num_experts ? choice_order(logits[i]) : 0;
    }
    __syncthreads();
    // Two neighbouring threads compare one expert with all others. Behind the last expert the order
    // is 0, which is never better.
    const int half = threadIdx.x % 2;
    for (int base = 0; base < p.num_experts; base += kFewThreads / 2) {
      const int expert = base + static_cast<int>(threadIdx.x) / 2;
      const uint32_t mine = expert < p.num_experts ? order[expert] : 0;
      int better = 0;  // how many are better; of two equal ones, the lower number is
#pragma unroll
      for (int i = half * 4; i < kMost; i += 8) {
        const auto others = load<4>(order + i);
#pragma unroll
        for (int j = 0; j < 4; ++j) better += others.x[j] >= mine + (i + j >= expert ? 1 : 0);
      }
      better += __shfl_xor_sync(kAllLanes, better, 1);
      if (half == 0 && expert < p.num_experts && better < p.top_k) {
        experts[better] = expert;
        rows[better][0] = static_cast<int8_t>(better);
      }
    }
    if (threadIdx.x == 0) count = p.context_lens != nullptr && p.context_lens[0] == 0 ? 0 : p.top_k;
    __syncthreads();
    if (weighs && threadIdx.x < 32) {
      const int lane = threadIdx.x;
      const float most = logits[experts[0]];
      const float share = lane < p.top_k ? expf(logits[experts[lane]] - most) : 0;
      float sum = 0;
      if (p.normalizes) sum = share;
      else
        for (int i = lane; i < p.num_experts; i += 32) sum += expf(logits[i] - most);
      sum = warp_sum(sum);
      if (lane < p.top_k) weights[lane][0] = share / sum;
    }
    __syncthreads();
  }
  template <int kPerLane>
  __device__ void find_of_several(const FewExpertsParams& p) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    if (warp < p.num_tokens) {
      const Choice choice =
          choose<kPerLane>(p.logits + warp * p.num_experts, p.num_experts, p.top_k, p.normalizes);
      const bool is_padding = p.context_lens != nullptr && p.context_lens[warp] == 0;
      if (lane < p.top_k) {
        const int at = warp * p.top_k + lane;
        expert_of[at] = is_padding ? -1 : choice.expert;
        weight_of[at] = choice.weight;
        if (!is_padding) atomicMin(&first_choice[choice.expert], at);
      }
    }
    __syncthreads();
    if (warp == 0) {
      int num_found = 0;
      for (int base = 0; base < p.num_tokens * p.top_k; base += 32) {
        const int at = base + lane;
        const int expert = at < p.num_tokens * p.top_k ? expert_of[at] : -1;
        const bool exists = expert >= 0;
        const bool is_first = exists && first_choice[expert] == at;
        const uint32_t firsts = __ballot_sync(kAllLanes, is_first);
        if (is_first) {
          index_of[at] = num_found + __popc(firsts & ((1u << lane) - 1));
          experts[index_of[at]] = expert;
        }
        num_found += __popc(firsts);
        __syncwarp();
        if (exists) {
          const int index = index_of[first_choice[expert]], token = at / p.top_k;
          rows[index][token] = static_cast<int8_t>(at);
          weights[index][token] = weight_of[at];
        }
      }
      if (lane == 0) count = num_found;
    }
    __syncthreads();
  }
};

// -- GEMMs

/// Stages of a warp's ring, tiles of 8 columns of act in a thread block at a time, and thread
/// blocks of gate_up on a multiprocessor. With one token the rings are small, so that a thread
/// block of down has room beside one of gate_up, since they begin at the same time. Two of gate_up
/// would compete with each other and with down, so that some would end late, but int4 needs two to
/// have enough bytes in flight. With more tokens, large rings are faster, and int4 has two tiles:
/// the four bits make a tile so small that adding up the sums of the warps would take as long as
/// multiplying.
template <class Format>
struct FewSizes {
  int stages, tiles, residents;
  static constexpr FewSizes of(int64_t num_tokens) {
    constexpr bool kIsInt4 = Format::kPieces == 1;
    if (num_tokens > 1) return {6, kIsInt4 ? 2 : 1, 1};
    return kIsInt4 ? FewSizes{4, 1, 2} : FewSizes{3, 1, 1};
  }
};

/// The dynamic shared memory of the kernel of gate and up.
template <class Format>
int64_t few_gate_up_bytes(int64_t num_tokens, int64_t hidden) {
  const auto size = FewSizes<Format>::of(num_tokens);
  return int64_t{kFewWarps} * size.stages * size.tiles * kTilesBytes<Format, 1> +
         num_tokens * few_x_pitch<Format>(static_cast<int>(hidden));
}
/// The dynamic shared memory of the kernel of down.
template <class Format>
int64_t few_down_bytes(int64_t num_tokens) {
  return int64_t{kFewWarps} * FewSizes<Format>::of(num_tokens).stages *
         (kTilesBytes<Format, 1> + num_tokens * Format::kChunk * 2);
}

/// act [T * top_k, n] = silu(x g^T) * x u^T for each choice of a token and the matrices g, u of its
/// expert. Memory bandwidth bounds it: the weights of each chosen expert are read once. An item is
/// kTiles tiles of 8 columns of one expert, for all tokens that chose it; a thread block takes
/// every gridDim.x-th item, and its warps divide k (swiglu_items.cuh).
template <class Format, int kPerLane, int kStages, int kTiles>
__global__ void __launch_bounds__(kFewThreads, 2) few_gate_up_kernel(const FewExpertsParams p) {
  using T = typename Format::T;
  extern __shared__ __align__(128) unsigned char shared[];
  __shared__ ChosenExperts chosen;
  __shared__ FewBlockSums<kTiles> sums;
  const int k = p.hidden, num_tiles = (p.n + kTiles * 8 - 1) / (kTiles * 8);
  const int pitch = few_x_pitch<Format>(k);
  const uint32_t x =
      shared_address(shared) + kFewWarps * kStages * kTilesBytes<Format, kTiles>;  // [T] rows
  chosen.clear();
  begin_kernel();
  // Behind the last column x is zero.
  const int row_pieces = (k + Format::kChunk - 1) / Format::kChunk * (Format::kChunk / 8);
  for (int i = threadIdx.x; i < p.num_tokens * row_pieces; i += kFewThreads) {
    const int token = i / row_pieces, column = i % row_pieces * 8;
    const bool exists = column < k;
    async_copy16_or_zero(
        x + token * pitch + column * 2,
        static_cast<const T*>(p.normed) + (exists ? int64_t{token} * k + column : 0), exists);
  }
  commit_async_copies();
  chosen.find<kPerLane>(p, false);

  const auto place_of = [&](int item) {
    return ItemPlace{int64_t{2} * p.n * chosen.experts[item / num_tiles],
                     item % num_tiles * kTiles * 8};
  };
  // The grid has room for more experts. A thread block without an item ends when x is there.
  const int num_items = chosen.count * num_tiles;
  if (static_cast<int>(blockIdx.x) >= num_items) return wait_all_async_copies();
  SwigluItems<Format, kStages, kTiles, decltype(place_of)> items(
      p.gate_up, p.n, k, num_items, shared_address(shared), kTilesBytes<Format, kTiles>, place_of);
  items.begin();
  wait_async_copies<kStages>();  // x
  __syncthreads();
  run_swiglu_items<Format>(
      items, sums, x, pitch, p.num_tokens, static_cast<T*>(p.act),
      [&](int item, int token) { return chosen.rows[item / num_tiles][token]; });
}

/// A chunk of k of one of the chosen experts.
struct Position {
  int expert = 0, chunk = 0;
  __device__ void advance(int by, int num_chunks) {
    chunk += by;
    while (chunk >= num_chunks) chunk -= num_chunks, ++expert;
  }
};

/// out [T, hidden] (+)= the sum over a token's experts of weight * act d^T, for the matrix d of
/// each expert. Memory bandwidth bounds it: the weights of each chosen expert are read once. A
/// thread block has 16 columns of out for all tokens, and its warps divide the chunks of k of all
/// chosen experts. The 16-byte pieces of a token's x, its row of act, are stored at their number ^
/// token.
template <class Format, int kPerLane, int kStages>
__global__ void __launch_bounds__(kFewThreads, 2)
    few_down_kernel(const __grid_constant__ FewExpertsParams p) {
  using T = typename Format::T;
  constexpr int kChunk = Format::kChunk, kWBytes = kTilesBytes<Format, 1>;
  extern __shared__ __align__(128) unsigned char shared[];
  __shared__ ChosenExperts chosen;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, quad = lane / 4, pair = lane % 4;
  const int k = p.n, num_chunks = (k + kChunk - 1) / kChunk;
  const int first_column = blockIdx.x * 16;
  const int stage_bytes = kWBytes + p.num_tokens * kChunk * 2;  // w, then x
  unsigned char* const mine = shared + warp * kStages * stage_bytes;
  const uint32_t ring = shared_address(mine);
  chosen.clear();
  chosen.find<kPerLane>(p, true);

  Position start;
  start.advance(warp, num_chunks);
  Position next_w = start, next_x = start;
  const auto fetch_w = [&](int stage) {
    if (next_w.expert >= chosen.count) return;
    const int64_t first = int64_t{chosen.experts[next_w.expert]} * p.hidden;
    ChunkSource<Format, 1> source;
    source.begin(p.down, next_w.chunk,
                 [&](int, int row) { return first + min(first_column + row, p.hidden - 1); });
    source.fetch(ring + stage * stage_bytes, 0);
    next_w.advance(kFewWarps, num_chunks);
  };
  const auto x_piece = [&](int stage, int token, int piece) {
    return ring + stage * stage_bytes + kWBytes + token * (kChunk * 2) + (piece ^ token) * 16;
  };
  const auto fetch_x = [&](int stage) {
    if (next_x.expert >= chosen.count) return;
    if (quad < p.num_tokens) {
      const int row = chosen.rows[next_x.expert][quad];
#pragma unroll
      for (int i = 0; i < kChunk / 32; ++i) {
        const int piece = i * 4 + pair, column = next_x.chunk * kChunk + piece * 8;
        const bool exists = row >= 0 && column < k;
        async_copy16_or_zero(
            x_piece(stage, quad, piece),
            static_cast<const T*>(p.act) + (exists ? int64_t{row} * k + column : 0), exists);
      }
    }
    next_x.advance(kFewWarps, num_chunks);
  };
#pragma unroll
  for (int stage = 0; stage < kStages; ++stage) fetch_w(stage);
  commit_async_copies();
  // If all weights fit the ring, the next kernel may start, and load its weights, only when the
  // previous kernel has ended, so that its loads do not delay this kernel's x. sum_pairs() relies
  // on the wait.
  const bool sends = p.peers.world > 1;
  const bool is_long = chosen.count * num_chunks > kStages * kFewWarps && !sends;
  if (is_long) launch_dependents();
  wait_for_previous_kernel();
  if (!is_long) launch_dependents();
#pragma unroll
  for (int stage = 0; stage < kStages; ++stage) {
    fetch_x(stage);
    commit_async_copies();
  }
  // A thread has up to one output.
  const int token = threadIdx.x / 16, column = first_column + threadIdx.x % 16;
  const bool has_output = token < p.num_tokens && column < p.hidden;
  T* const out = static_cast<T*>(p.out) + int64_t{token} * p.hidden + column;
  float y = 0;
  if (has_output && token >= p.first_added && token < p.last_added) y = to_float(*out);

  float total[1][1][4] = {};
  int stage = 0;
#pragma unroll 1
  for (Position at = start; at.expert < chosen.count; at.advance(kFewWarps, num_chunks)) {
    wait_async_copies<kStages - 1>();
    __syncwarp();  // other lanes have copied x and the scales
    uint4 b[1][Format::kGroups];
    load_x<Format>(b[0], [&](int token_of_lane, int piece) {
      return x_piece(stage, min(token_of_lane, p.num_tokens - 1), piece);
    });
    float acc[1][1][4] = {};
    multiply_chunk<Format>(acc, acc[0][0], ring + stage * stage_bytes, b, p.down);
    const auto weight = load<2>(&chosen.weights[at.expert][2 * pair]);
#pragma unroll
    for (int i = 0; i < 4; ++i) total[0][0][i] += weight.x[i % 2] * acc[0][0][i];
    __syncwarp();  // all lanes have read x and the scales, which are overwritten now
    fetch_w(stage);
    fetch_x(stage);
    commit_async_copies();
    stage = stage + 1 == kStages ? 0 : stage + 1;
  }
  const uint32_t epoch = sends ? current_epoch(p.peers) : 0;
  // Each warp writes its sums to the memory of its ring.
  wait_async_copies<0>();
  __syncwarp();
  store_sums(reinterpret_cast<float*>(mine), total);
  __syncthreads();
  if (!has_output) return;
  y = add_warps(y, reinterpret_cast<const float*>(shared) + token * kSumPitch + threadIdx.x % 16,
                kStages * stage_bytes / 4);
  if (sends) send_element<T>(p.peers, epoch, out - static_cast<T*>(p.out), y);
  else *out = from_float<T>(y);
}

// -- launcher

/// The largest shared memory of either GEMM.
template <class Format>
int64_t few_shared_bytes(int64_t num_tokens, int64_t hidden) {
  constexpr int64_t kStatic = sizeof(ChosenExperts) + sizeof(FewBlockSums<2>);
  return std::max(few_gate_up_bytes<Format>(num_tokens, hidden),
                  few_down_bytes<Format>(num_tokens)) +
         kStatic;
}

/// Launches both GEMMs.
template <class Format>
void run_few_gemms(Launch where, const FewExpertsParams& p) {
  const auto run = [&]<int kPerLane, int kTokens>() {
    constexpr auto kSize = FewSizes<Format>::of(kTokens);
    constexpr auto gate_up = few_gate_up_kernel<Format, kPerLane, kSize.stages, kSize.tiles>;
    constexpr auto down = few_down_kernel<Format, kPerLane, kSize.stages>;
    allow_shared_memory<gate_up>();
    allow_shared_memory<down>();
    constexpr int kColumns = kSize.tiles * 8;
    const int most_items = p.num_tokens * p.top_k * ((p.n + kColumns - 1) / kColumns);
    const int most_blocks = where.num_sms * kSize.residents;
    launch(where, gate_up, blocks_for(std::min(most_items, most_blocks)), kFewThreads,
           static_cast<size_t>(few_gate_up_bytes<Format>(p.num_tokens, p.hidden)), p);
    launch(where, down, blocks_for(p.hidden, 16), kFewThreads,
           static_cast<size_t>(few_down_bytes<Format>(p.num_tokens)), p);
  };
  const auto run_tokens = [&]<int kPerLane>() {
    if (p.num_tokens == 1) run.template operator()<kPerLane, 1>();
    else run.template operator()<kPerLane, kMaxTokens>();
  };
  if (p.num_experts <= 128) run_tokens.template operator()<4>();
  else run_tokens.template operator()<kMaxExperts / 32>();
}

}  // namespace nanovllm::cuda
