#include <algorithm>

#include "nanovllm/ops/cuda/device/mma.cuh"
#include "nanovllm/ops/cuda/elementwise/row_ops.cuh"
#include "nanovllm/ops/cuda/experts/choose.cuh"
#include "nanovllm/ops/cuda/experts/experts.h"

// A mixture of experts for few tokens, in three kernels. They are bound by reading the weights of
// the chosen experts once and by the latency from one kernel to the next:
//   logits    the norm and the router's logits, a warp for each expert
//   gate_up   both matrices of each chosen expert, and SwiGLU
//   down      the second matrix of each chosen expert; a thread block has columns of the output, so
//             it can add up the experts itself
// Nothing is sorted and no row is copied: every thread block of the last two kernels chooses the
// experts of all tokens itself. down does this, and loads weights, before gate_up has ended,
// because the logits are older than gate_up.
//
// The GEMMs are those of gemm/small_gemm.cu: a lane copies into its warp's ring in shared memory
// exactly those pieces of the weights that it will feed to the tensor cores itself. Of each chunk
// of k, lane 4 q + p takes elements 8 p to 8 p + 7 and 32 + 8 p to 32 + 8 p + 7 of row q of 8, and
// of token q.
namespace nanovllm::cuda {
namespace {

constexpr int kWarps = 8, kThreads = kWarps * 32;
constexpr int kMaxTokens = 8;                // columns of a matrix instruction
constexpr int kMaxChoices = 64;              // of all tokens
constexpr int kMaxHidden = 4096;             // a warp has a row of the router in registers
constexpr int kChunk = 64;                   // of k
constexpr int kPieceBytes = 32 * 16;         // 16 bytes for each lane of a warp
constexpr int kTileBytes = 4 * kPieceBytes;  // a chunk of 16 rows of w

struct Params {
  const void *x, *router;       // [T, hidden]; [num_experts, hidden]
  const float* norm;            // [hidden] or null: x is the normed x already
  const void *gate_up, *down;   // of each expert [2 n, hidden] and [hidden, n]
  void* normed;                 // [T, hidden]
  float* logits;                // [T, num_experts]
  const int32_t* context_lens;  // [T] or null: a token where it is 0 chooses no expert
  void* act;                    // [T * top_k, n]
  void* out;                    // [T, hidden]
  int first_added, last_added;  // to these rows of out the sum is added
  int num_tokens, num_experts, top_k, hidden, n;
  float eps;
  bool normalizes;
};

// -- norm and logits

constexpr int kLogitsWarps = 4, kLogitsThreads = kLogitsWarps * 32;

/// Grid: (experts / kLogitsWarps, tokens). Every warp norms the token itself. It has its row of the
/// router, and the thread block has the weights of the norm, before the previous kernel has ended.
template <class T, int kVectors>
__global__ void __launch_bounds__(kLogitsThreads) few_logits_kernel(const Params p) {
  constexpr int kN = kPer16Bytes<T>;
  __shared__ __align__(16) float norm[kMaxHidden];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, token = blockIdx.y;
  const int expert = blockIdx.x * kLogitsWarps + warp;
  const auto column = [&](int j) { return (j * 32 + lane) * kN; };
  Vec<T, kN> w[kVectors], x[kVectors];
#pragma unroll
  for (int j = 0; j < kVectors; ++j) {
    w[j] = x[j] = {};
    if (expert < p.num_experts && column(j) < p.hidden)
      w[j] = load<kN>(static_cast<const T*>(p.router) + int64_t{expert} * p.hidden + column(j));
  }
  if (p.norm != nullptr)
    for (int i = threadIdx.x * 4; i < p.hidden; i += kLogitsThreads * 4)
      async_copy16(shared_address(norm + i), p.norm + i);
  wait_all_async_copies();
  __syncthreads();
  begin_kernel();
#pragma unroll
  for (int j = 0; j < kVectors; ++j)
    if (column(j) < p.hidden)
      x[j] = load<kN>(static_cast<const T*>(p.x) + int64_t{token} * p.hidden + column(j));
  // Each vector has a sum of its own, because a chain of additions takes as long as it is.
  if (p.norm != nullptr) {
    float squares = 0;
#pragma unroll
    for (int j = 0; j < kVectors; ++j) squares += add_squares(x[j], 0);
    const float factor = rms_factor(warp_sum(squares), p.hidden, p.eps);
#pragma unroll
    for (int j = 0; j < kVectors; ++j) {
      if (column(j) >= p.hidden) continue;
      x[j] = normed(x[j], factor, load<kN>(norm + column(j)));
      if (blockIdx.x == 0 && warp == 0)
        store<kN>(static_cast<T*>(p.normed) + int64_t{token} * p.hidden + column(j), x[j]);
    }
  }
  float sum = 0;
#pragma unroll
  for (int j = 0; j < kVectors; ++j) {
    float part = 0;
#pragma unroll
    for (int i = 0; i < kN; ++i) part += to_float(x[j].x[i]) * to_float(w[j].x[i]);
    sum += part;
  }
  sum = warp_sum(sum);
  if (lane == 0 && expert < p.num_experts) p.logits[token * p.num_experts + expert] = sum;
}

// -- the chosen experts

/// In shared memory: every thread block finds them itself.
struct ChosenExperts {
  // The different experts, in the order in which tokens chose them first; for each of them and each
  // token the weight, and the row of act. They are 0 and -1 if the token did not choose the expert.
  alignas(16) float weights[kMaxChoices][kMaxTokens];
  int8_t rows[kMaxChoices][kMaxTokens];
  int experts[kMaxChoices];
  int count;
  // All choices in the order of the tokens.
  int expert_of[kMaxChoices], index_of[kMaxChoices];
  float weight_of[kMaxChoices];
  int first_choice[kMaxExperts];  // of an expert

  __device__ void clear() {
    for (int i = threadIdx.x; i < kMaxExperts; i += kThreads) first_choice[i] = kMaxChoices;
    for (int i = threadIdx.x; i < kMaxChoices * kMaxTokens; i += kThreads)
      rows[i / kMaxTokens][i % kMaxTokens] = -1, weights[i / kMaxTokens][i % kMaxTokens] = 0;
    __syncthreads();
  }
  /// After clear(), when the logits are there.
  template <int kPerLane>
  __device__ void find(const Params& p) {
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

/// acc [16, tokens] += a chunk of 16 rows of w, which this lane has copied to the address `w`,
/// times its pieces of x.
template <class T>
__device__ inline void multiply(float (&acc)[4], uint32_t w, const uint4 (&x)[2]) {
  using Words = Vec<uint32_t, 4>;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const auto low = bits_as<Words>(load_shared(w + i * kPieceBytes));
    const auto high = bits_as<Words>(load_shared(w + (2 + i) * kPieceBytes));
    const auto b = bits_as<Words>(x[i]);
#pragma unroll
    for (int j = 0; j < 4; j += 2)
      mma_16x8x16<T>(acc, {low.x[j], high.x[j], low.x[j + 1], high.x[j + 1]}, b.x[j], b.x[j + 1]);
  }
}

constexpr int kPitch = 20;  // floats from one token's sums to the next one's: no bank conflicts
using BlockSums = float[2][kWarps][kMaxTokens * kPitch];  // tiles use them in turn
/// Writes a warp's sums.
__device__ inline void store_sums(float* sums, const float (&acc)[4]) {
  const int quad = threadIdx.x % 32 / 4, pair = threadIdx.x % 4;
#pragma unroll
  for (int i = 0; i < 4; ++i) sums[(2 * pair + i % 2) * kPitch + quad + i / 2 * 8] = acc[i];
}

/// Bytes from one token's row of x to the next one's, without bank conflicts.
__host__ __device__ inline int pitch_of(int k) { return (k + kChunk - 1) / kChunk * 128 + 64; }

/// A thread block takes every gridDim.x-th tile: 8 columns of one expert's act. Its warps divide k
/// and load the weights of the next tiles while they add up their sums.
template <class T, int kPerLane, int kStages>
__global__ void __launch_bounds__(kThreads) few_gate_up_kernel(const Params p) {
  extern __shared__ __align__(128) unsigned char shared[];
  __shared__ ChosenExperts chosen;
  __shared__ BlockSums sums;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, quad = lane / 4, pair = lane % 4;
  const int k = p.hidden, num_chunks = (k + kChunk - 1) / kChunk, num_tiles = (p.n + 7) / 8;
  const uint32_t ring = shared_address(shared) + warp * kStages * kTileBytes + lane * 16;
  const uint32_t x = shared_address(shared) + kWarps * kStages * kTileBytes;  // [T] rows
  chosen.clear();
  begin_kernel();
  const int row_pieces = k / 8;
  for (int i = threadIdx.x; i < p.num_tokens * row_pieces; i += kThreads)
    async_copy16(x + i / row_pieces * pitch_of(k) + i % row_pieces * 16,
                 static_cast<const T*>(p.normed) + i * int64_t{8});
  commit_async_copies();
  chosen.find<kPerLane>(p);

  const int num_items = chosen.count * num_tiles;
  // What is fetched next.
  int item = warp < num_chunks ? blockIdx.x : num_items, chunk = warp;
  const T* from = nullptr;
  const auto begin_item = [&] {
    if (item >= num_items) return;
    const int column = min(item % num_tiles * 8 + quad, p.n - 1);
    from = static_cast<const T*>(p.gate_up) +
           (int64_t{2} * p.n * chosen.experts[item / num_tiles] + column) * k;
  };
  const auto fetch = [&](int stage) {
    if (item < num_items) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        // Behind the last column x is zero.
        const int column = min(chunk * kChunk + pair * 8 + i * 32, k - 8);
        const uint32_t to = ring + stage * kTileBytes + i * kPieceBytes;
        async_copy16_of_128(to, from + column);
        async_copy16_of_128(to + 2 * kPieceBytes, from + int64_t{p.n} * k + column);
      }
      chunk += kWarps;
      if (chunk >= num_chunks) {
        chunk = warp, item += gridDim.x;
        begin_item();
      }
    }
    commit_async_copies();
  };
  begin_item();
#pragma unroll
  for (int stage = 0; stage < kStages; ++stage) fetch(stage);
  wait_async_copies<kStages>();  // x
  __syncthreads();

  int stage = 0;
  for (int at = blockIdx.x, turn = 0; at < num_items; at += gridDim.x, turn ^= 1) {
    float acc[4] = {};
    for (int c = warp; c < num_chunks; c += kWarps) {
      uint4 b[2];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int column = c * kChunk + pair * 8 + i * 32;
        b[i] = {};
        if (quad < p.num_tokens && column < k)
          b[i] = load_shared(x + quad * pitch_of(k) + column * 2);
      }
      wait_async_copies<kStages - 1>();
      multiply<T>(acc, ring + stage * kTileBytes, b);
      fetch(stage);
      stage = stage + 1 == kStages ? 0 : stage + 1;
    }
    store_sums(sums[turn][warp], acc);
    __syncthreads();
    const int token = threadIdx.x / 8, column = at % num_tiles * 8 + threadIdx.x % 8;
    const int row = token < p.num_tokens ? chosen.rows[at / num_tiles][token] : -1;
    if (row >= 0 && column < p.n) {
      float gate = 0, up = 0;
#pragma unroll
      for (int w = 0; w < kWarps; ++w) {
        const float* const sum = sums[turn][w] + token * kPitch + threadIdx.x % 8;
        gate += sum[0];
        up += sum[8];
      }
      static_cast<T*>(p.act)[int64_t{row} * p.n + column] = swiglu_of_sums<T>(gate, up);
    }
  }
}

/// A chunk of k of one of the chosen experts.
struct Position {
  int expert = 0, chunk = 0;
  __device__ void advance(int by, int num_chunks) {
    chunk += by;
    while (chunk >= num_chunks) chunk -= num_chunks, ++expert;
  }
};

/// A thread block has 16 columns of out. Its warps divide the chunks of k of all chosen experts.
template <class T, int kPerLane, int kStages>
__global__ void __launch_bounds__(kThreads) few_down_kernel(const Params p) {
  extern __shared__ __align__(128) unsigned char shared[];
  __shared__ ChosenExperts chosen;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, quad = lane / 4, pair = lane % 4;
  const int k = p.n, num_chunks = (k + kChunk - 1) / kChunk;
  const int first_column = blockIdx.x * 16;
  const int stage_bytes = kTileBytes + p.num_tokens * kChunk * 2;  // w, then x
  unsigned char* const mine = shared + warp * kStages * stage_bytes;
  const uint32_t ring = shared_address(mine);
  chosen.clear();
  chosen.find<kPerLane>(p);

  Position start;
  start.advance(warp, num_chunks);
  Position next_w = start, next_x = start;
  const T* from[2];
#pragma unroll
  for (int half = 0; half < 2; ++half)
    from[half] = static_cast<const T*>(p.down) +
                 int64_t{min(first_column + half * 8 + quad, p.hidden - 1)} * k;
  const auto fetch_w = [&](int stage) {
    if (next_w.expert >= chosen.count) return;
    const int64_t first = int64_t{chosen.experts[next_w.expert]} * p.hidden * k;
#pragma unroll
    for (int half = 0; half < 2; ++half)
#pragma unroll
      for (int i = 0; i < 2; ++i)
        async_copy16_of_128(
            ring + stage * stage_bytes + (2 * half + i) * kPieceBytes + lane * 16,
            from[half] + first + min(next_w.chunk * kChunk + pair * 8 + i * 32, k - 8));
    next_w.advance(kWarps, num_chunks);
  };
  const auto x_piece = [&](int stage, int i) {
    return ring + stage * stage_bytes + kTileBytes + quad * kChunk * 2 + pair * 16 + i * 64;
  };
  const auto fetch_x = [&](int stage) {
    if (next_x.expert >= chosen.count) return;
    if (quad < p.num_tokens) {
      const int row = chosen.rows[next_x.expert][quad];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int column = next_x.chunk * kChunk + pair * 8 + i * 32;
        const bool exists = row >= 0 && column < k;
        async_copy16_or_zero(
            x_piece(stage, i),
            static_cast<const T*>(p.act) + (exists ? int64_t{row} * k + column : 0), exists);
      }
    }
    next_x.advance(kWarps, num_chunks);
  };
#pragma unroll
  for (int stage = 0; stage < kStages; ++stage) fetch_w(stage);
  commit_async_copies();
  // As in small_gemm.cu: the loads of the next kernel must not delay this kernel's x, unless this
  // kernel loads more weights afterwards.
  const bool is_long = chosen.count * num_chunks > kStages * kWarps;
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

  float total[4] = {};
  int stage = 0;
  for (Position at = start; at.expert < chosen.count; at.advance(kWarps, num_chunks)) {
    wait_async_copies<kStages - 1>();
    uint4 b[2] = {};
    if (quad < p.num_tokens)
      b[0] = load_shared(x_piece(stage, 0)), b[1] = load_shared(x_piece(stage, 1));
    float acc[4] = {};
    multiply<T>(acc, ring + stage * stage_bytes + lane * 16, b);
    const auto weight = load<2>(&chosen.weights[at.expert][2 * pair]);
#pragma unroll
    for (int i = 0; i < 4; ++i) total[i] += weight.x[i % 2] * acc[i];
    fetch_w(stage);
    fetch_x(stage);
    commit_async_copies();
    stage = stage + 1 == kStages ? 0 : stage + 1;
  }
  // Each warp writes its sums to the memory of its ring.
  wait_async_copies<0>();
  __syncwarp();
  store_sums(reinterpret_cast<float*>(mine), total);
  __syncthreads();
  if (!has_output) return;
#pragma unroll
  for (int w = 0; w < kWarps; ++w)
    y += reinterpret_cast<const float*>(
        shared + w * kStages * stage_bytes)[token * kPitch + threadIdx.x % 16];
  *out = from_float<T>(y);
}

// -- launcher

/// With one token, two thread blocks of gate_up and one of down have room on a multiprocessor
/// together if their rings are small. With more tokens, large rings are faster.
int num_stages(int64_t num_tokens) { return num_tokens == 1 ? 3 : 6; }
/// The dynamic shared memory of the GEMMs.
int64_t gate_up_bytes(int64_t num_tokens, int64_t hidden) {
  return kWarps * num_stages(num_tokens) * kTileBytes +
         num_tokens * pitch_of(static_cast<int>(hidden));
}
int64_t down_bytes(int64_t num_tokens) {
  return kWarps * num_stages(num_tokens) * (kTileBytes + num_tokens * kChunk * 2);
}
int64_t most_shared_bytes() {
  int device = 0, most = 0;
  cuda_check(cudaGetDevice(&device), "device");
  cuda_check(cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device),
             "shared memory");
  return most;
}

}  // namespace

bool supports_few_experts(const FewExperts& args) {
  const int64_t num_tokens = args.x.shape[0], hidden = args.x.shape[1], n = args.act.shape[1];
  if (num_tokens > kMaxTokens || args.act.shape[0] > kMaxChoices || dtype_size(args.x.dtype) != 2 ||
      hidden % 8 != 0 || hidden > kMaxHidden || n % 8 != 0 || args.logits.shape[1] > kMaxExperts)
    return false;
  constexpr int64_t kStatic = sizeof(ChosenExperts) + sizeof(BlockSums);
  return std::max(gate_up_bytes(num_tokens, hidden), down_bytes(num_tokens)) + kStatic <=
         most_shared_bytes();
}

void few_experts(Launch where, const FewExperts& args) {
  check_args(supports_few_experts(args) && args.act.shape[0] % args.x.shape[0] == 0 &&
                 args.act.shape[0] <= args.x.shape[0] * args.logits.shape[1],
             "few_experts: a shape or dtype that it does not support");
  const Params p = {.x = args.x.data,
                    .router = args.router.data,
                    .norm = args.norm.weight.as<const float>(),
                    .gate_up = args.gate_up.data,
                    .down = args.down.data,
                    .normed = args.norm.weight ? args.normed.data : args.x.data,
                    .logits = args.logits.as<float>(),
                    .context_lens = args.context_lens.as<const int32_t>(),
                    .act = args.act.data,
                    .out = args.out.data,
                    .first_added = static_cast<int>(args.added.first),
                    .last_added = static_cast<int>(args.added.first + args.added.count),
                    .num_tokens = static_cast<int>(args.x.shape[0]),
                    .num_experts = static_cast<int>(args.logits.shape[1]),
                    .top_k = static_cast<int>(args.act.shape[0] / args.x.shape[0]),
                    .hidden = static_cast<int>(args.x.shape[1]),
                    .n = static_cast<int>(args.act.shape[1]),
                    .eps = args.norm.eps,
                    .normalizes = args.normalizes};
  const auto run = [&]<class T, int kPerLane, int kStages>(int blocks_per_sm) {
    const auto logits =
        p.hidden <= 2048 ? few_logits_kernel<T, 8> : few_logits_kernel<T, kMaxHidden / 256>;
    constexpr auto gate_up = few_gate_up_kernel<T, kPerLane, kStages>;
    constexpr auto down = few_down_kernel<T, kPerLane, kStages>;
    allow_shared_memory<gate_up>();
    allow_shared_memory<down>();
    launch(where, logits,
           dim3(blocks_for(p.num_experts, kLogitsWarps), static_cast<unsigned>(p.num_tokens)),
           kLogitsThreads, 0, p);
    const int most_tiles = p.num_tokens * p.top_k * ((p.n + 7) / 8);
    launch(
        where, gate_up, blocks_for(std::min(most_tiles, where.num_sms * blocks_per_sm)), kThreads,
        static_cast<size_t>(kWarps * kStages * kTileBytes + p.num_tokens * pitch_of(p.hidden)), p);
    launch(where, down, blocks_for(p.hidden, 16), kThreads,
           static_cast<size_t>(down_bytes(p.num_tokens)), p);
  };
  with_16bit_type(args.x.dtype, [&](auto type) {
    using T = decltype(type);
    const auto run_stages = [&]<int kPerLane>() {
      if (num_stages(p.num_tokens) == 3) run.template operator()<T, kPerLane, 3>(2);
      else run.template operator()<T, kPerLane, 6>(1);
    };
    if (p.num_experts <= 128) run_stages.template operator()<4>();
    else run_stages.template operator()<kMaxExperts / 32>();
  });
}

}  // namespace nanovllm::cuda
