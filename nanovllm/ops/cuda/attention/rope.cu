#include <algorithm>
#include <bit>

#include "nanovllm/ops/cuda/attention/rope.h"
#include "nanovllm/ops/cuda/device/device.cuh"
#include "nanovllm/ops/cuda/device/hopper.cuh"

// Norm of q and k, rotary embedding, and the store of k and v into the cache.
namespace nanovllm::cuda {
namespace {

// -- kernels

/// Any head_dim: one block a token, one warp a head. N neighbours of each half a lane: 1 or 2.
template <class T, int N>
__global__ void rope_kernel(const RopeParams p) {
  constexpr int kMaxPer = 256 / 2 / 32 / N;  // vectors a lane, head_dim at most 256
  begin_kernel();
  const int lane = threadIdx.x % 32, head_dim = p.layout.head_dim, half = head_dim / 2;
  const int num_kv_heads = p.layout.num_kv_heads, num_rows = p.num_heads + 2 * num_kv_heads;
  T* const token = static_cast<T*>(p.qkv) + int64_t{blockIdx.x} * num_rows * head_dim;
  const int64_t position = p.positions[blockIdx.x];
  const int slot = p.slot_mapping[blockIdx.x];
  const int last = slot < 0 ? p.num_heads : num_rows;  // a token that is not stored has its q alone
  for (int row = threadIdx.x / 32; row < last; row += blockDim.x / 32) {
    T* const x = token + row * head_dim;
    const bool is_q = row < p.num_heads, is_v = row >= p.num_heads + num_kv_heads;
    const float* norm = is_q ? p.q_norm : is_v ? nullptr : p.k_norm;
    Vec<T, N> a[kMaxPer], b[kMaxPer];
    float squares = 0;
#pragma unroll
    for (int j = 0; j < kMaxPer; ++j) {
      const int at = (j * 32 + lane) * N;
      if (at >= half) continue;
      a[j] = load<N>(x + at);
      b[j] = load<N>(x + half + at);
#pragma unroll
      for (int i = 0; i < N; ++i) {
        const float u = to_float(a[j].x[i]), v = to_float(b[j].x[i]);
        squares += u * u + v * v;
      }
    }
    const float scale =
        norm ? rsqrtf(warp_sum(squares) / static_cast<float>(head_dim) + p.eps) : 1.0f;
    T* out = x;
    const int key = slot % p.layout.block_size;
    if (!is_q)
      out = static_cast<T*>(p.k) + (is_v ? p.layout.layer_stride : 0) +
            p.layout.entry(slot / p.layout.block_size, (row - p.num_heads) % num_kv_heads);
#pragma unroll
    for (int j = 0; j < kMaxPer; ++j) {
      const int at = (j * 32 + lane) * N;
      if (at >= half) continue;
      if (!is_v) {
#pragma unroll
        for (int i = 0; i < N; ++i) {
          float u = to_float(a[j].x[i]), v = to_float(b[j].x[i]);
          if (norm) {
            u *= scale * norm[at + i];
            v *= scale * norm[half + at + i];
          }
          const float cos = p.cos[position * half + at + i], sin = p.sin[position * half + at + i];
          a[j].x[i] = from_float<T>(u * cos - v * sin);
          b[j].x[i] = from_float<T>(v * cos + u * sin);
        }
      }
      store<N>(out + (is_q ? at : p.layout.at(key, at)), a[j]);
      store<N>(out + (is_q ? half + at : p.layout.at(key, half + at)), b[j]);
    }
  }
}

/// Few tokens, and the usual head_dims, 16 to 256 by powers of two: a thread has eight neighbours
/// of each half of a head, so a warp some heads.
template <class T>
__global__ void __launch_bounds__(256, 4) rope_wide_kernel(const RopeParams p, int num_items) {
  const int head_dim = p.layout.head_dim, half = head_dim / 2, parts = half / 8;
  const int num_kv_heads = p.layout.num_kv_heads, num_rows = p.num_heads + 2 * num_kv_heads;
  const int thread = blockIdx.x * blockDim.x + threadIdx.x;
  const bool there = thread < num_items;
  const int item = there ? thread : num_items - 1;
  const int head = item / parts, at = item % parts * 8;  // heads counted over all tokens
  const int token = head / num_rows, row = head % num_rows;
  const bool is_q = row < p.num_heads, is_v = row >= p.num_heads + num_kv_heads;
  T* const x = static_cast<T*>(p.qkv) + int64_t{head} * head_dim;
  const int slot = p.slot_mapping[token];
  const float* norm = is_q ? p.q_norm : is_v ? nullptr : p.k_norm;
  Vec<float, 8> cos = {}, sin = {}, norm_a = {}, norm_b = {};
  if (!is_v) {
    const int64_t angle = p.positions[token] * int64_t{half} + at;
    cos = load<8>(p.cos + angle);
    sin = load<8>(p.sin + angle);
  }
  if (norm) {
    norm_a = load<8>(norm + at);
    norm_b = load<8>(norm + half + at);
  }
  launch_next();  // decode attention fetches its old keys meanwhile
  wait_before();  // all but q, k and v is older
  Vec<T, 8> a = load<8>(x + at), b = load<8>(x + half + at);
  float squares = 0;
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const float u = to_float(a.x[i]), v = to_float(b.x[i]);
    squares += u * u + v * v;
  }
  for (int lane = parts / 2; lane > 0; lane /= 2)
    squares += __shfl_xor_sync(0xffffffff, squares, lane);
  const float scale = norm ? rsqrtf(squares / static_cast<float>(head_dim) + p.eps) : 1.0f;
  if (!there || (!is_q && slot < 0)) return;
  if (!is_v) {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      float u = to_float(a.x[i]), v = to_float(b.x[i]);
      if (norm) {
        u *= scale * norm_a.x[i];
        v *= scale * norm_b.x[i];
      }
      a.x[i] = from_float<T>(u * cos.x[i] - v * sin.x[i]);
      b.x[i] = from_float<T>(v * cos.x[i] + u * sin.x[i]);
    }
  }
  if (is_q) {
    store<8>(x + at, a);
    store<8>(x + half + at, b);
    return;
  }
  const int key = slot % p.layout.block_size;
  T* const out = static_cast<T*>(p.k) + (is_v ? p.layout.layer_stride : 0) +
                 p.layout.entry(slot / p.layout.block_size, (row - p.num_heads) % num_kv_heads);
  store<8>(out + p.layout.at(key, at), a);
  store<8>(out + p.layout.at(key, half + at), b);
}

/// Many tokens of 16-bit types, the same head_dims: a warp a token, a thread eight neighbours of
/// each half of every few'th head. Instructions bound it, so that norm and angle are one factor:
///   out_a = scale * (a * (norm_a * cos) - b * (norm_b * sin)), out_b likewise.
template <class T>
__global__ void __launch_bounds__(256, 3) rope_tokens_kernel(const RopeParams p, int num_tokens) {
  begin_kernel();
  const int head_dim = p.layout.head_dim, half = head_dim / 2, parts = half / 8;
  const int lane = threadIdx.x % 32, first = lane / parts, at = lane % parts * 8;
  const int stride = 32 / parts, num_kv_heads = p.layout.num_kv_heads;
  const uint32_t lanes = ((1u << parts) - 1) << (lane - lane % parts);  // of the same head
  const int token = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
  if (token >= num_tokens) return;
  T* const x =
      static_cast<T*>(p.qkv) + int64_t{token} * (p.num_heads + 2 * num_kv_heads) * head_dim + at;
  const int64_t angle = p.positions[token] * int64_t{half} + at;
  const Vec<float, 8> cos = load<8>(p.cos + angle), sin = load<8>(p.sin + angle);

  // Heads begin .. begin + count; store(head, a, b).
  const auto rotate = [&](int begin, int count, const float* norm, auto store_head) {
    Vec<float, 8> a_cos = cos, b_sin = sin, b_cos = cos, a_sin = sin;
    if (norm) {
      const Vec<float, 8> norm_a = load<8>(norm + at), norm_b = load<8>(norm + half + at);
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        a_cos.x[i] *= norm_a.x[i], a_sin.x[i] *= norm_a.x[i];
        b_cos.x[i] *= norm_b.x[i], b_sin.x[i] *= norm_b.x[i];
      }
    }
    const T* const heads = x + begin * head_dim;
    uint4 next_a = {}, next_b = {};
    const auto read = [&](int head) {
      next_a = *reinterpret_cast<const uint4*>(heads + head * head_dim);
      next_b = *reinterpret_cast<const uint4*>(heads + head * head_dim + half);
    };
    if (first < count) read(first);
    for (int head = first; head < count; head += stride) {
      const auto a = reinterpret_cast<const Vec<T, 8>&>(next_a);
      const auto b = reinterpret_cast<const Vec<T, 8>&>(next_b);
      if (head + stride < count) read(head + stride);
      float scale = 1;
      if (norm) {
        float squares = 0;
#pragma unroll
        for (int i = 0; i < 8; ++i) {
          squares += to_float(a.x[i]) * to_float(a.x[i]);
          squares += to_float(b.x[i]) * to_float(b.x[i]);
        }
        for (int other = parts / 2; other > 0; other /= 2)
          squares += __shfl_xor_sync(lanes, squares, other);
        scale = rsqrtf(squares * (1.0f / static_cast<float>(head_dim)) + p.eps);
      }
      uint32_t out_a[4], out_b[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        float u[2], v[2];
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          const int k = 2 * i + j;
          const float from_a = to_float(a.x[k]), from_b = to_float(b.x[k]);
          u[j] = scale * (from_a * a_cos.x[k] - from_b * b_sin.x[k]);
          v[j] = scale * (from_b * b_cos.x[k] + from_a * a_sin.x[k]);
        }
        out_a[i] = hopper::pack<T>(u[0], u[1]);
        out_b[i] = hopper::pack<T>(v[0], v[1]);
      }
      store_head(head, make_uint4(out_a[0], out_a[1], out_a[2], out_a[3]),
                 make_uint4(out_b[0], out_b[1], out_b[2], out_b[3]));
    }
  };
  const auto write = [](T* to, const uint4& v) { *reinterpret_cast<uint4*>(to) = v; };
  rotate(0, p.num_heads, p.q_norm, [&](int head, const uint4& a, const uint4& b) {
    write(x + head * head_dim, a);
    write(x + head * head_dim + half, b);
  });
  const int slot = p.slot_mapping[token];
  if (slot < 0) return;
  const int key = slot % p.layout.block_size;
  T* const k = static_cast<T*>(p.k) + p.layout.entry(slot / p.layout.block_size, 0);
  const int per_head = p.layout.block_size * head_dim;
  const int a_at = p.layout.at(key, at), b_at = p.layout.at(key, half + at);
  rotate(p.num_heads, num_kv_heads, p.k_norm, [&](int head, const uint4& a, const uint4& b) {
    write(k + head * per_head + a_at, a);
    write(k + head * per_head + b_at, b);
  });
  const T* const values = x + (p.num_heads + num_kv_heads) * head_dim;
  for (int head = first; head < num_kv_heads; head += stride) {
    T* const to = k + p.layout.layer_stride + head * per_head;
    store<8>(to + a_at, load<8>(values + head * head_dim));
    store<8>(to + b_at, load<8>(values + head * head_dim + half));
  }
}

}  // namespace

// -- launcher

void rope_and_store(Launch where, const RopeStoreArgs& args, const KvCache& kv,
                    const Batch& batch) {
  const Tensor& qkv = args.qkv;
  const int64_t num_rows = args.num_heads + 2 * kv.num_kv_heads;
  check_args(qkv.shape[0] == batch.num_tokens() && qkv.shape[1] == num_rows * kv.head_dim &&
                 kv.dtype == qkv.dtype && kv.head_dim <= 256 &&
                 args.cos.shape[1] == kv.head_dim / 2,
             "rope_and_store: wrong shapes");
  const RopeParams params(args, kv, batch);
  with_float_type(qkv.dtype, [&](auto type) {
    using T = decltype(type);
    if (kv.head_dim >= 16 && std::has_single_bit(static_cast<uint64_t>(kv.head_dim))) {
      const int64_t items = qkv.shape[0] * num_rows * kv.head_dim / 16;
      check_args(items < INT32_MAX, "rope_and_store: too many tokens");
      if constexpr (sizeof(T) == 2)
        if (items >= int64_t{256} * 8 * where.num_sms)
          return launch(where, rope_tokens_kernel<T>,
                        dim3(static_cast<unsigned>((qkv.shape[0] + 7) / 8)), 256, 0, params,
                        static_cast<int>(qkv.shape[0]));
      return launch(where, rope_wide_kernel<T>, dim3(static_cast<unsigned>((items + 255) / 256)),
                    256, 0, params, static_cast<int>(items));
    }
    const int threads = 32 * static_cast<int>(std::min<int64_t>(num_rows, 32));
    const auto kernel = kv.head_dim % 4 == 0 ? rope_kernel<T, 2> : rope_kernel<T, 1>;
    launch(where, kernel, dim3(static_cast<unsigned>(qkv.shape[0])), threads, 0, params);
  });
}

}  // namespace nanovllm::cuda
