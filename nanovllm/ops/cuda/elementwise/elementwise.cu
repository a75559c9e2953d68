#include "nanovllm/ops/cuda/elementwise/elementwise.h"

#include <algorithm>

#include "nanovllm/ops/cuda/device/device.cuh"

namespace nanovllm::cuda {
namespace {

// -- kernels

__global__ void idle_kernel(int64_t num_cycles) {
  launch_next();
  wait_before();
  const int64_t begin = clock64();
  while (clock64() - begin < num_cycles) continue;
}

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
  launch_next();
  const int row = static_cast<int>((blockIdx.x * blockDim.x + threadIdx.x) / 32);
  const int lane = threadIdx.x % 32;
  Vec<float, N> w[kPer];
#pragma unroll
  for (int j = 0; j < kPer; ++j)
    if (const int at = (j * 32 + lane) * N; at < width) w[j] = load<N>(weight + at);
  wait_before();
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

/// Blocks take row after row. A thread keeps its elements in registers between the passes, and its
/// weights throughout: kPer vectors of N.
template <class T, int N, int kPer>
__global__ void rms_norm_kernel(T* out, const T* in, const float* weight, int width, float eps,
                                int num_rows) {
  launch_next();
  __shared__ float sums[2][32];  // for every other row, so that one barrier a row is enough
  Vec<float, N> w[kPer];
#pragma unroll
  for (int j = 0; j < kPer; ++j)
    if (const int at = (j * blockDim.x + threadIdx.x) * N; at < width) w[j] = load<N>(weight + at);
  wait_before();
  for (int row = blockIdx.x, turn = 0; row < num_rows; row += gridDim.x, turn ^= 1) {
    const int64_t first = int64_t{row} * width;
    Vec<T, N> v[kPer];
    float squares = 0;
#pragma unroll
    for (int j = 0; j < kPer; ++j)
      if (const int at = (j * blockDim.x + threadIdx.x) * N; at < width)
        v[j] = load<N>(in + first + at);
#pragma unroll
    for (int j = 0; j < kPer; ++j) {
      if ((j * blockDim.x + threadIdx.x) * N >= width) continue;
#pragma unroll
      for (int i = 0; i < N; ++i) squares += to_float(v[j].x[i]) * to_float(v[j].x[i]);
    }
    const float scale = rsqrtf(block_sum(squares, sums[turn]) / static_cast<float>(width) + eps);
#pragma unroll
    for (int j = 0; j < kPer; ++j) {
      const int at = (j * blockDim.x + threadIdx.x) * N;
      if (at >= width) continue;
#pragma unroll
      for (int i = 0; i < N; ++i)
        v[j].x[i] = from_float<T>(to_float(v[j].x[i]) * scale * w[j].x[i]);
      store<N>(out + first + at, v[j]);
    }
  }
}

/// One block a row.
/// A thread block for each row of x; y's rows are y_stride apart, 0 where all are the same.
template <class T, class Y>
__global__ void add_kernel(T* x, const Y* y, int width, int64_t y_stride) {
  begin_kernel();
  x += int64_t{blockIdx.x} * width;
  y += blockIdx.x * y_stride;
  for (int i = threadIdx.x; i < width; i += blockDim.x)
    x[i] = from_float<T>(to_float(x[i]) + to_float(y[i]));
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
      const int needed = (width + per_thread - 1) / per_thread;
      const int threads = std::clamp((needed + 31) / 32 * 32, 32, 1024);
      // As many blocks as are there at once, or each row's own.
      const int64_t fit = int64_t{where.num_sms} * std::max(1, 1024 / threads);
      launch(where, kernel, blocks(std::min(x.shape[0], fit)), threads, 0, out.as<T>(),
             x.as<const T>(), norm.weight.as<const float>(), width, norm.eps,
             static_cast<int>(x.shape[0]));
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

void idle(Launch where, int64_t num_cycles) {
  launch(where, idle_kernel, dim3(static_cast<unsigned>(where.num_sms)), 128, 0, num_cycles);
}

void add(Launch where, Tensor x, Tensor y) {
  const bool is_row = y.rank == 1;
  check_args(is_row ? y.dtype == DType::kF32 && y.size() == x.shape[1]
                    : y.dtype == x.dtype && y.shape == x.shape,
             "add: wrong shapes");
  with_float_type(x.dtype, [&](auto type) {
    using T = decltype(type);
    const auto width = static_cast<int>(x.shape[1]);
    if (is_row)
      launch(where, add_kernel<T, float>, blocks(x.shape[0]), 256, 0, x.as<T>(),
             y.as<const float>(), width, int64_t{0});
    else
      launch(where, add_kernel<T, T>, blocks(x.shape[0]), 256, 0, x.as<T>(), y.as<const T>(), width,
             int64_t{width});
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

void copy_blocks(Launch where, const KvCache& kv, Tensor pairs) {
  const int64_t bytes = kv.block_elements() * static_cast<int64_t>(dtype_size(kv.dtype));
  check_args(bytes % 16 == 0, "blocks are no multiple of 16 bytes");
  launch(where, copy_blocks_kernel, dim3(blocks(pairs.shape[0]), blocks(2 * kv.num_layers)), 256, 0,
         static_cast<uint4*>(kv.data), pairs.as<const int2>(), kv.num_blocks * bytes / 16,
         bytes / 16);
}

}  // namespace nanovllm::cuda
