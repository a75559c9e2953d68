#include "nanovllm/ops/cuda/attention/attention.h"
#include "nanovllm/ops/cuda/attention/dispatch.cuh"
#include "nanovllm/ops/cuda/attention/kv_store.cuh"

//   out[t, h] = sum_j p[j] v[j] / sum_j p[j],  p[j] = exp(scale q[t, h] . k[j] - max),
// for query head h of each new token t and the keys j up to its own, in the dtypes and head_dims
// that the fast kernels do not support, such as float32. A thread block has kWarps warps. Each
// computes one query head of one token with an online softmax, 32 keys at a time: for q . k each
// lane has a key, for p v each lane has every 32nd dimension. Instructions bound it, because there
// are no tensor cores, and query heads that share a KV head load its keys again. Source: Milakov
// and Gimelshein, "Online normalizer calculation for softmax", 2018.
namespace nanovllm::cuda {
namespace {

// -- kernel

constexpr int kWarps = 4, kMaxHeadDim = 256;

/// C: the type of the cache's elements.
template <class T, class C>
__global__ void __launch_bounds__(kWarps * 32) general_kernel(const AttentionParams p) {
  __shared__ float queries[kWarps][kMaxHeadDim];
  begin_kernel();
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, head_dim = p.layout.head_dim;
  const int64_t task = int64_t{blockIdx.x} * kWarps + warp;
  const int t = static_cast<int>(task / p.num_heads), head = static_cast<int>(task % p.num_heads);
  if (t >= p.num_tokens) return;
  const int seq = last_not_above(p.cu_seqlens_q, p.num_seqs, t);
  const int num_keys = p.context_lens[seq] - (p.cu_seqlens_q[seq + 1] - t) + 1;
  const int kv_head = head / (p.num_heads / p.layout.num_kv_heads);
  const int32_t* table = p.block_tables + int64_t{p.seq_slots[seq]} * p.max_blocks;
  const char* k = static_cast<const char*>(p.k);
  const char* v = static_cast<const char*>(p.v);
  const int64_t width = int64_t{p.num_heads + 2 * p.layout.num_kv_heads} * head_dim;
  const T* q = static_cast<const T*>(p.qkv) + t * width + head * head_dim;
  float* const query = queries[warp];
  for (int d = lane; d < head_dim; d += 32) query[d] = to_float(q[d]) * p.scale;
  __syncwarp();

  float max = -INFINITY, sum = 0, acc[kMaxHeadDim / 32] = {};
  for (int first = 0; first < num_keys; first += 32) {
    const int key = first + lane;
    float score = -INFINITY, value_scale = 1;
    int64_t entry = 0;
    const int row = key % p.layout.block_size;
    if (key < num_keys) {
      entry = p.layout.entry(table[key / p.layout.block_size], kv_head);
      score = 0;
      for (int d = 0; d < head_dim; d += 8) {
        constexpr int kWide = kIsE4m3<C> ? 8 : kPer16Bytes<C>;
#pragma unroll
        for (int i = 0; i < 8; i += kWide) {
          const Vec<C, kWide> x =
              load<kWide>(reinterpret_cast<const C*>(k + entry + p.layout.at(row, d + i)));
#pragma unroll
          for (int j = 0; j < kWide; ++j) score += query[d + i + j] * to_float(x.x[j]);
        }
      }
    }
    if (kIsE4m3<C> && key < num_keys) {
      const int64_t scale = entry + p.layout.scale_at(row);
      score *= *reinterpret_cast<const float*>(k + scale);
      value_scale = *reinterpret_cast<const float*>(v + scale);
    }
    const float new_max = fmaxf(max, warp_max(score));
    const float shrink = expf(max - new_max);
    const float weight = expf(score - new_max);
    max = new_max;
    sum = sum * shrink + warp_sum(weight);
#pragma unroll
    for (int j = 0; j < kMaxHeadDim / 32; ++j) acc[j] *= shrink;
    for (int i = 0; i < min(32, num_keys - first); ++i) {
      const float w = __shfl_sync(kAllLanes, weight * value_scale, i);
      const char* value = v + __shfl_sync(kAllLanes, entry, i);
      const int value_row = (first + i) % p.layout.block_size;
#pragma unroll
      for (int j = 0; j < kMaxHeadDim / 32; ++j)
        if (const int d = j * 32 + lane; d < head_dim)
          acc[j] += w * to_float(*reinterpret_cast<const C*>(value + p.layout.at(value_row, d)));
    }
  }
  T* out = static_cast<T*>(p.out) + (int64_t{t} * p.num_heads + head) * head_dim;
#pragma unroll
  for (int j = 0; j < kMaxHeadDim / 32; ++j)
    if (const int d = j * 32 + lane; d < head_dim)
      out[d] = from_float<T>(num_keys > 0 ? acc[j] / sum : 0.0f);
}

}  // namespace

// -- launcher

void general_attention(Launch where, const AttentionParams& params, DType dtype) {
  check_args(params.layout.head_dim <= kMaxHeadDim && params.layout.head_dim % 8 == 0,
             "general_attention: head_dim must be a multiple of 8 up to 256");
  const int64_t tasks = int64_t{params.num_tokens} * params.num_heads;
  with_float_type(dtype, [&](auto type) {
    using T = decltype(type);
    with_cache_type<T>(params.layout, [&](auto element) {
      launch(where, general_kernel<T, decltype(element)>, blocks_for(tasks, kWarps), kWarps * 32, 0,
             params);
    });
  });
}

}  // namespace nanovllm::cuda
