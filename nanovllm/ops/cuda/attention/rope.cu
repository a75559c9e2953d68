#include "nanovllm/ops/cuda/attention/rope.h"

#include <bit>

#include "nanovllm/ops/cuda/attention/dispatch.cuh"
#include "nanovllm/ops/cuda/elementwise/row_ops.cuh"

// RMSNorm of each head of q and k, if the model has it (Qwen3), then the rotary embedding
//   low'[i] = low[i] cos[i] - high[i] sin[i],  high'[i] = high[i] cos[i] + low[i] sin[i]
// of the lower and upper half of the head, and the store of k and v into the paged cache
// (kv_layout.cuh). q is rotated in place. A thread holds neighbours of the lower half of a head and
// their partners in the upper half, which rotate together. Each element is read and written once,
// so memory bandwidth bounds many tokens; the latency of dependent loads bounds few. Source: Su et
// al., "RoFormer", 2021.
namespace nanovllm::cuda {
namespace {

// -- kernels

constexpr int kThreads = 256, kWarps = kThreads / 32;
constexpr int kMaxHeadDim = 256;  // a head fits a warp with N = 4

/// The kernel for few tokens; head_dim is a multiple of 2 N. Neighbouring threads, 2^lane_bits of
/// them, compute one head of q, k or v of one token, so that its sum of squares stays in a warp.
/// Each has N elements of both halves; threads beyond half of head_dim have nothing to do.
template <class T, class C, int N>
__global__ void __launch_bounds__(kThreads, 4)
    rope_kernel(const RopeParams p, int lane_bits, int num_threads) {
  const int head_dim = p.layout.head_dim, half = head_dim / 2;
  const int index = blockIdx.x * blockDim.x + threadIdx.x;
  const int thread = min(index, num_threads - 1);
  const int lanes = 1 << lane_bits, at = (thread & (lanes - 1)) * N;
  const int head = thread >> lane_bits;  // counted over all tokens
  const int token = head / p.num_rows(), row = head % p.num_rows();
  const bool is_active = index < num_threads && at < half;
  T* const x = static_cast<T*>(p.qkv) + int64_t{head} * head_dim;
  const int slot = p.slot_mapping[token];
  const float* const norm = p.norm(row);
  Vec<float, N> cos = {}, sin = {}, norm_low = {}, norm_high = {};
  if (is_active && !p.is_v(row)) {
    const int64_t angle = p.positions[token] * int64_t{half} + at;
    cos = load<N>(p.cos + angle);
    sin = load<N>(p.sin + angle);
  }
  if (is_active && norm != nullptr) {
    norm_low = load<N>(norm + at);
    norm_high = load<N>(norm + half + at);
  }
  launch_dependents();         // now decode attention can prefetch its old keys
  wait_for_previous_kernel();  // which writes q, k and v; everything else is older
  HeadPart<T, N> part = {};
  if (is_active) part.load_from(x, half, at);
  const float squares = lanes_sum(part.squares(), lanes);
  const bool stores = is_active && (p.is_q(row) || slot >= 0);
  if (!kIsE4m3<C> && !stores) return;
  const float factor = norm != nullptr ? rms_factor(squares, head_dim, p.eps) : 1.0f;
  if (!p.is_v(row)) part.norm_and_rotate(norm != nullptr, factor, norm_low, norm_high, cos, sin);
  const float scale = scale_of_head<C>(part.low, part.high, lanes);
  if (!stores) return;
  if (p.is_q(row)) {
    store<N>(x + at, part.low);
    store<N>(x + half + at, part.high);
    return;
  }
  const CacheEntry<C> entry = p.cache_entry<C>(row, slot);
  entry.store(p.layout, at, cache_elements<C>(part.low, 1 / scale));
  entry.store(p.layout, half + at, cache_elements<C>(part.high, 1 / scale));
  if (at == 0) entry.store_scale(p.layout, scale);
}

/// The kernel for many tokens of a 16-bit type; head_dim is a power of two from 16 on. A warp
/// computes a token in rounds, in each of which head_dim / 16 neighbouring threads have one head.
/// Each thread has eight neighbouring elements of both halves of it, and copies its elements of the
/// next rounds into shared memory itself, so that enough copies are under way and nothing has to be
/// synchronised. Norm weights and angles are multiplied once for each token, not for each head:
///   low' = factor * (low * (weight_low * cos) - high * (weight_high * sin)), high' likewise.
/// This rounds differently from rope_kernel in the last bit of a float.
template <class T, class C>
__global__ void __launch_bounds__(kThreads, 3)
    rope_many_tokens_kernel(const RopeParams p, int num_tokens) {
  constexpr int kStages = 4;
  __shared__ uint4 ring[kStages][2][kThreads];
  begin_kernel();
  const int head_dim = p.layout.head_dim, half = head_dim / 2, lanes = half / 8;
  const int lane = threadIdx.x % 32, first = lane / lanes, at = lane % lanes * 8;
  const int stride = 32 / lanes, num_kv_heads = p.layout.num_kv_heads;
  const int token = blockIdx.x * kWarps + threadIdx.x / 32;
  if (token >= num_tokens) return;
  T* const x = static_cast<T*>(p.qkv) + int64_t{token} * p.num_rows() * head_dim + at;

  // `next` is the next head to copy, and `end` is behind the last head of q, of k or of v,
  // whichever it belongs to. Each of the three begins with a new round.
  int next = first, end = p.num_heads, fetched = 0;
  const auto fetch = [&] {
    if (next < end) {
      const uint32_t to = shared_address(&ring[fetched % kStages][0][threadIdx.x]);
      async_copy16(to, x + next * head_dim);
      async_copy16(to + sizeof(ring[0][0]), x + next * head_dim + half);
    }
    next += stride;
    if (next - first >= end && end < p.num_rows()) next = end + first, end += num_kv_heads;
    ++fetched;
    commit_async_copies();
  };
#pragma unroll
  for (int i = 0; i < kStages; ++i) fetch();

  const int64_t angle = p.positions[token] * int64_t{half} + at;
  const Vec<float, 8> cos = load<8>(p.cos + angle), sin = load<8>(p.sin + angle);
  // Calls use(head, low, high) for this thread's parts of the next `count` heads.
  int stage = 0;
  const auto for_each_head = [&](int count, auto use) {
    for (int head = first; head - first < count; head += stride) {
      wait_async_copies<kStages - 1>();
      if (head < count)
        use(head, bits_as<Vec<T, 8>>(ring[stage][0][threadIdx.x]),
            bits_as<Vec<T, 8>>(ring[stage][1][threadIdx.x]));
      stage = stage + 1 < kStages ? stage + 1 : 0;
      fetch();
    }
  };
  // Rotates the next `count` heads and calls store_head(head, low, high) for each.
  const auto rotate = [&](int count, const float* norm, auto store_head) {
    Vec<float, 8> low_cos = cos, high_sin = sin, high_cos = cos, low_sin = sin;
    if (norm) {
      const Vec<float, 8> weight_low = load<8>(norm + at), weight_high = load<8>(norm + half + at);
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        low_cos.x[i] *= weight_low.x[i], low_sin.x[i] *= weight_low.x[i];
        high_cos.x[i] *= weight_high.x[i], high_sin.x[i] *= weight_high.x[i];
      }
    }
    for_each_head(count, [&](int head, const Vec<T, 8>& low, const Vec<T, 8>& high) {
      float factor = 1;
      if (norm) {
        float squares = 0;
#pragma unroll
        for (int i = 0; i < 8; ++i) {
          squares += to_float(low.x[i]) * to_float(low.x[i]);
          squares += to_float(high.x[i]) * to_float(high.x[i]);
        }
        factor = rsqrtf(lanes_sum(squares, lanes) * (1.0f / static_cast<float>(head_dim)) + p.eps);
      }
      float y[2][8];
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const float u = to_float(low.x[i]), v = to_float(high.x[i]);
        y[0][i] = factor * (u * low_cos.x[i] - v * high_sin.x[i]);
        y[1][i] = factor * (v * high_cos.x[i] + u * low_sin.x[i]);
      }
      store_head(head, rounded<T>(y[0]), rounded<T>(y[1]));
    });
  };
  rotate(p.num_heads, p.q_norm, [&](int head, const Vec<T, 8>& low, const Vec<T, 8>& high) {
    store<8>(x + head * head_dim, low);
    store<8>(x + head * head_dim + half, high);
  });
  const int slot = p.slot_mapping[token];
  if (slot < 0) return wait_all_async_copies();
  const CacheEntry<C> first_entry = p.cache_entry<C>(p.num_heads, slot);  // key of KV head 0
  const auto store_in_cache = [&](int64_t to, const Vec<T, 8>& low, const Vec<T, 8>& high) {
    const CacheEntry<C> entry = {first_entry.entry + to, first_entry.row};
    const float scale = scale_of_head<C>(low, high, lanes);
    entry.store(p.layout, at, cache_elements<C>(low, 1 / scale));
    entry.store(p.layout, half + at, cache_elements<C>(high, 1 / scale));
    if (at == 0) entry.store_scale(p.layout, scale);
  };
  rotate(num_kv_heads, p.k_norm, [&](int head, const Vec<T, 8>& low, const Vec<T, 8>& high) {
    store_in_cache(p.layout.entry(0, head), low, high);
  });
  for_each_head(num_kv_heads, [&](int head, const Vec<T, 8>& low, const Vec<T, 8>& high) {
    store_in_cache(p.layout.layer_stride + p.layout.entry(0, head), low, high);
  });
}

}  // namespace

// -- launcher

void rope_and_store(Launch where, const RopeStoreArgs& args, const KvCache& kv, const Step& step) {
  const Tensor& qkv = args.qkv;
  const int64_t num_rows = args.num_heads + 2 * kv.num_kv_heads, half = kv.head_dim / 2;
  check_args(
      qkv.shape[0] == step.num_tokens() && qkv.shape[1] == num_rows * kv.head_dim &&
          (kv.dtype == qkv.dtype || kv.dtype == DType::kE4M3) && kv.head_dim % 8 == 0 &&
          kv.head_dim <= kMaxHeadDim && args.cos.shape[1] == half,
      "rope_and_store: qkv must be [tokens, heads * head_dim] of the cache's dtype if that is "
      "not e4m3, cos [positions, head_dim / 2], head_dim a multiple of 8 up to 256");
  const RopeParams params(args, kv, step);
  with_float_type(qkv.dtype, [&](auto type) {
    using T = decltype(type);
    const auto run = [&]<int N, class C>() {
      const int lane_bits = std::bit_width(static_cast<uint64_t>(half / N) - 1);
      const int64_t num_threads = qkv.shape[0] * num_rows << lane_bits;
      check_args(num_threads < INT32_MAX, "rope_and_store: too many tokens");
      if constexpr (sizeof(T) == 2 && N == 8)
        // With eight thread blocks of rope_kernel for each multiprocessor the GPU is full, and then
        // the kernel with fewer instructions is faster.
        if (half == int64_t{N} << lane_bits && num_threads >= int64_t{kThreads} * 8 * where.num_sms)
          return launch(where, rope_many_tokens_kernel<T, C>, blocks_for(qkv.shape[0], kWarps),
                        kThreads, 0, params, static_cast<int>(qkv.shape[0]));
      launch(where, rope_kernel<T, C, N>, blocks_for(num_threads, kThreads), kThreads, 0, params,
             lane_bits, static_cast<int>(num_threads));
    };
    with_cache_type<T>(params.layout, [&](auto element) {
      using C = decltype(element);
      if (half % 8 == 0) run.template operator()<8, C>();
      else run.template operator()<4, C>();
    });
  });
}

}  // namespace nanovllm::cuda
