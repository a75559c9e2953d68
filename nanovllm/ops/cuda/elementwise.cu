#include "nanovllm/ops/cuda/elementwise.h"

#include <algorithm>
#include <bit>

#include "nanovllm/ops/cuda/device.cuh"
#include "nanovllm/ops/cuda/kv_layout.cuh"

namespace nanovllm::cuda {
namespace {

// -- kernels

/// One block a row; a unit is 16 bytes, or 2 where rows are no multiple of 16 bytes.
template <class Unit>
__global__ void gather_kernel(Unit* out, const Unit* table, const int32_t* rows, int64_t width,
                              int64_t first, int64_t num_rows) {
  begin_kernel();
  const int64_t row = rows[blockIdx.x] - first;
  const bool there = 0 <= row && row < num_rows;
  for (int64_t i = threadIdx.x; i < width; i += blockDim.x)
    out[blockIdx.x * width + i] = there ? table[row * width + i] : Unit{};
}

/// One warp a row of up to 32 * kPer vectors of N, which stay in registers between the passes.
template <class T, int N, int kPer>
__global__ void rms_norm_warp_kernel(T* out, const T* in, const float* weight, int width, float eps,
                                     int num_rows) {
  const int row = static_cast<int>((blockIdx.x * blockDim.x + threadIdx.x) / 32);
  const int lane = threadIdx.x % 32;
  Vec<float, N> w[kPer];
#pragma unroll
  for (int j = 0; j < kPer; ++j)
    if (const int at = (j * 32 + lane) * N; at < width) w[j] = load<N>(weight + at);
  begin_kernel();
  if (row >= num_rows) return;
  const T* const x = in + int64_t{row} * width;
  Vec<T, N> v[kPer];
  float squares = 0;
#pragma unroll
  for (int j = 0; j < kPer; ++j)
    if (const int at = (j * 32 + lane) * N; at < width) v[j] = load<N>(x + at);
#pragma unroll
  for (int j = 0; j < kPer; ++j) {
    if ((j * 32 + lane) * N >= width) continue;
#pragma unroll
    for (int i = 0; i < N; ++i) squares += to_float(v[j].x[i]) * to_float(v[j].x[i]);
  }
  const float scale = rsqrtf(warp_sum(squares) / static_cast<float>(width) + eps);
#pragma unroll
  for (int j = 0; j < kPer; ++j) {
    const int at = (j * 32 + lane) * N;
    if (at >= width) continue;
    Vec<T, N> y;
#pragma unroll
    for (int i = 0; i < N; ++i) y.x[i] = from_float<T>(to_float(v[j].x[i]) * scale * w[j].x[i]);
    store<N>(out + int64_t{row} * width + at, y);
  }
}

/// One block a row. A thread keeps its elements in registers between the passes: kPer vectors of N.
template <class T, int N, int kPer>
__global__ void rms_norm_kernel(T* out, const T* in, const float* weight, int width, float eps) {
  __shared__ float sums[32];
  float w[kPer][N];
#pragma unroll
  for (int j = 0; j < kPer; ++j)
    if (const int at = (j * blockDim.x + threadIdx.x) * N; at < width)
#pragma unroll
      for (int i = 0; i < N; ++i) w[j][i] = weight[at + i];
  begin_kernel();
  const int64_t row = int64_t{blockIdx.x} * width;
  float x[kPer][N];
  float squares = 0;
#pragma unroll
  for (int j = 0; j < kPer; ++j) {
    const int at = (j * blockDim.x + threadIdx.x) * N;
    if (at >= width) continue;
    const Vec<T, N> v = load<N>(in + row + at);
#pragma unroll
    for (int i = 0; i < N; ++i) {
      x[j][i] = to_float(v.x[i]);
      squares += x[j][i] * x[j][i];
    }
  }
  const float scale = rsqrtf(block_sum(squares, sums) / static_cast<float>(width) + eps);
#pragma unroll
  for (int j = 0; j < kPer; ++j) {
    const int at = (j * blockDim.x + threadIdx.x) * N;
    if (at >= width) continue;
    Vec<T, N> y;
#pragma unroll
    for (int i = 0; i < N; ++i) y.x[i] = from_float<T>(x[j][i] * scale * w[j][i]);
    store<N>(out + row + at, y);
  }
}

/// One block a row.
template <class T>
__global__ void add_bias_kernel(T* x, const float* bias, int width) {
  begin_kernel();
  T* const row = x + int64_t{blockIdx.x} * width;
  for (int i = threadIdx.x; i < width; i += blockDim.x)
    row[i] = from_float<T>(to_float(row[i]) + bias[i]);
}

template <class To, class From>
__global__ void convert_kernel(To* out, const From* x, int64_t count) {
  begin_kernel();
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += step)
    out[i] = from_float<To>(to_float(x[i]));
}

/// Grid: parts of a row, rows.
template <class T, int N>
__global__ void silu_mul_kernel(T* out, const T* gate_up, int width, int num_rows) {
  begin_kernel();
  const int at = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x) * N;
  if (at >= width) return;
  for (int64_t row = blockIdx.y; row < num_rows; row += gridDim.y) {
    const T* const gate = gate_up + row * 2 * width + at;
    const Vec<T, N> g = load<N>(gate), u = load<N>(gate + width);
    Vec<T, N> y;
#pragma unroll
    for (int i = 0; i < N; ++i) {
      const float x = to_float(g.x[i]);
      y.x[i] = from_float<T>(__fdividef(x, __expf(-x) + 1) * to_float(u.x[i]));
    }
    store<N>(out + row * width + at, y);
  }
}

struct RopeParams {
  void* qkv;                                // [T, (num_heads + 2 num_kv_heads) * head_dim]
  const float *q_norm, *k_norm;             // [head_dim] or null
  const float *cos, *sin;                   // [positions, head_dim / 2]
  const int32_t *positions, *slot_mapping;  // [T]
  void* k;  // the layer's K; its V lies layout.layer_stride further on
  KvLayout layout;
  int num_heads;
  float eps;
};

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

/// The usual head_dims, 16 to 256 by powers of two: a thread has eight neighbours of each half of a
/// head, so a warp some heads.
template <class T>
__global__ void __launch_bounds__(256, 4)
    rope_wide_kernel(const RopeParams p, int num_items, bool is_short) {
  const int head_dim = p.layout.head_dim, half = head_dim / 2, parts = half / 8;
  const int num_kv_heads = p.layout.num_kv_heads, num_rows = p.num_heads + 2 * num_kv_heads;
  const int thread = blockIdx.x * blockDim.x + threadIdx.x;
  const bool there = thread < num_items;
  const int item = there ? thread : num_items - 1;
  const int head = item / parts, at = item % parts * 8;  // heads counted over all tokens
  const int token = head / num_rows, row = head % num_rows;
  const bool is_q = row < p.num_heads, is_v = row >= p.num_heads + num_kv_heads;
  T* const x = static_cast<T*>(p.qkv) + int64_t{head} * head_dim;
  Vec<T, 8> a, b;
  const auto read = [&] {
    begin_kernel();
    a = load<8>(x + at);
    b = load<8>(x + half + at);
  };
  // All but these are older than the kernel before. Few tokens wait for it with the rest at hand;
  // of many, what counts is how much is on its way at once.
  if (!is_short) read();
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
  if (is_short) read();
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

/// Grid: pairs, 2 * layers; a unit is 16 bytes.
__global__ void copy_blocks_kernel(uint4* pool, const int2* pairs, int64_t pool_stride,
                                   int64_t width) {
  begin_kernel();
  const int2 pair = pairs[blockIdx.x];
  uint4* const layer = pool + blockIdx.y * pool_stride;
  for (int64_t i = threadIdx.x; i < width; i += blockDim.x)
    layer[pair.y * width + i] = layer[pair.x * width + i];
}

// -- launchers

int64_t row_bytes(const Tensor& t) {
  return t.shape[1] * static_cast<int64_t>(dtype_size(t.dtype));
}

unsigned blocks(int64_t n) { return static_cast<unsigned>(n); }

}  // namespace

void gather_rows(Launch where, Tensor out, Tensor table, Tensor rows, int64_t first) {
  check_args(
      out.shape[0] == rows.shape[0] && out.shape[1] == table.shape[1] && out.dtype == table.dtype,
      "gather_rows: wrong shapes");
  const int64_t bytes = row_bytes(out);
  const auto run = [&](auto unit) {
    using Unit = decltype(unit);
    const int64_t width = bytes / static_cast<int64_t>(sizeof(Unit));
    launch(where, gather_kernel<Unit>, blocks(rows.shape[0]),
           static_cast<int>(std::clamp<int64_t>((width + 31) / 32 * 32, 32, 256)), 0,
           out.as<Unit>(), table.as<const Unit>(), rows.as<const int32_t>(), width, first,
           table.shape[0]);
  };
  if (bytes % 16 == 0) run(uint4());
  else run(uint16_t());
}

void rms_norm(Launch where, Tensor out, Tensor x, const Norm& norm) {
  check_args(
      out.shape == x.shape && norm.weight.size() == x.shape[1] && norm.weight.dtype == DType::kF32,
      "rms_norm: wrong shapes");
  const auto width = static_cast<int>(x.shape[1]);
  with_float_type(x.dtype, [&](auto type) {
    using T = decltype(type);
    const auto run = [&](auto kernel, int per_thread) {
      const int threads = std::clamp((width / per_thread + 31) / 32 * 32, 32, 1024);
      launch(where, kernel, blocks(x.shape[0]), threads, 0, out.as<T>(), x.as<const T>(),
             norm.weight.as<const float>(), width, norm.eps);
    };
    constexpr int kWide = 16 / sizeof(T);
    if (width % kWide == 0 && width <= 128 * kWide) {
      launch(where, rms_norm_warp_kernel<T, kWide, 4>, blocks((x.shape[0] + 7) / 8), 256, 0,
             out.as<T>(), x.as<const T>(), norm.weight.as<const float>(), width, norm.eps,
             static_cast<int>(x.shape[0]));
    } else if (width % kWide == 0 && width <= 1024 * kWide && x.shape[0] <= 1024) {
      run(rms_norm_kernel<T, kWide, 1>, kWide);  // the shortest wait; below, the most in flight
    } else if (width % kWide == 0 && width <= 4 * 1024 * kWide) {
      run(rms_norm_kernel<T, kWide, 4>, 4 * kWide);
    } else {
      check_args(width <= 32 * 1024, "a norm of more than 32768 elements");
      run(rms_norm_kernel<T, 1, 32>, 1);
    }
  });
}

void add_bias(Launch where, Tensor x, Tensor bias) {
  check_args(bias.dtype == DType::kF32 && bias.size() == x.shape[1], "add_bias: wrong shapes");
  with_float_type(x.dtype, [&](auto type) {
    using T = decltype(type);
    launch(where, add_bias_kernel<T>, blocks(x.shape[0]), 256, 0, x.as<T>(), bias.as<const float>(),
           static_cast<int>(x.shape[1]));
  });
}

void convert(Launch where, Tensor out, Tensor x) {
  check_args(out.size() == x.size(), "convert: wrong shapes");
  with_float_type(out.dtype, [&](auto to) {
    with_float_type(x.dtype, [&](auto from) {
      using To = decltype(to);
      using From = decltype(from);
      launch(where, convert_kernel<To, From>, blocks(where.num_sms * 8), 256, 0, out.as<To>(),
             x.as<const From>(), x.size());
    });
  });
}

void silu_mul(Launch where, Tensor out, Tensor gate_up) {
  check_args(gate_up.shape[0] == out.shape[0] && gate_up.shape[1] == 2 * out.shape[1] &&
                 gate_up.dtype == out.dtype,
             "silu_mul: wrong shapes");
  with_float_type(out.dtype, [&](auto type) {
    using T = decltype(type);
    const auto run = [&](auto kernel, int64_t per_thread) {
      constexpr int kThreads = 128;
      const int64_t parts = (out.shape[1] / per_thread + kThreads - 1) / kThreads;
      launch(where, kernel, dim3(blocks(parts), blocks(std::min<int64_t>(out.shape[0], 65535))),
             kThreads, 0, out.as<T>(), gate_up.as<const T>(), static_cast<int>(out.shape[1]),
             static_cast<int>(out.shape[0]));
    };
    constexpr int kWide = 16 / sizeof(T);
    if (out.shape[1] % kWide == 0) run(silu_mul_kernel<T, kWide>, kWide);
    else run(silu_mul_kernel<T, 1>, 1);
  });
}

void rope_and_store(Launch where, const RopeStoreArgs& args, const KvCache& kv,
                    const Batch& batch) {
  const Tensor& qkv = args.qkv;
  const int64_t num_rows = args.num_heads + 2 * kv.num_kv_heads;
  check_args(qkv.shape[0] == batch.num_tokens() && qkv.shape[1] == num_rows * kv.head_dim &&
                 kv.dtype == qkv.dtype && kv.head_dim <= 256 &&
                 args.cos.shape[1] == kv.head_dim / 2,
             "rope_and_store: wrong shapes");
  const KvLayout layout(kv);
  with_float_type(qkv.dtype, [&](auto type) {
    using T = decltype(type);
    const RopeParams params = {.qkv = qkv.data,
                               .q_norm = args.q_norm.as<const float>(),
                               .k_norm = args.k_norm.as<const float>(),
                               .cos = args.cos.as<const float>(),
                               .sin = args.sin.as<const float>(),
                               .positions = batch.positions.as<const int32_t>(),
                               .slot_mapping = batch.slot_mapping.as<const int32_t>(),
                               .k = static_cast<T*>(kv.data) + 2 * layout.layer_stride * args.layer,
                               .layout = layout,
                               .num_heads = static_cast<int>(args.num_heads),
                               .eps = args.eps};
    if (kv.head_dim >= 16 && std::has_single_bit(static_cast<uint64_t>(kv.head_dim))) {
      const int64_t items = qkv.shape[0] * num_rows * kv.head_dim / 16;
      check_args(items < INT32_MAX, "rope_and_store: too many tokens");
      launch(where, rope_wide_kernel<T>, blocks((items + 255) / 256), 256, 0, params,
             static_cast<int>(items), items < int64_t{256} * 8 * where.num_sms);
      return;
    }
    const int threads = 32 * static_cast<int>(std::min<int64_t>(num_rows, 32));
    const auto kernel = kv.head_dim % 4 == 0 ? rope_kernel<T, 2> : rope_kernel<T, 1>;
    launch(where, kernel, blocks(qkv.shape[0]), threads, 0, params);
  });
}

void copy_blocks(Launch where, const KvCache& kv, Tensor pairs) {
  const int64_t bytes = kv.block_elements() * static_cast<int64_t>(dtype_size(kv.dtype));
  check_args(bytes % 16 == 0, "blocks are no multiple of 16 bytes");
  launch(where, copy_blocks_kernel, dim3(blocks(pairs.shape[0]), blocks(2 * kv.num_layers)), 256, 0,
         static_cast<uint4*>(kv.data), pairs.as<const int2>(), kv.num_blocks * bytes / 16,
         bytes / 16);
}

}  // namespace nanovllm::cuda
