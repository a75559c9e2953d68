#include "nanovllm/ops/cuda/elementwise/elementwise.h"

#include <algorithm>

#include "nanovllm/ops/cuda/elementwise/row_ops.cuh"

// Kernels that pass once over rows in global memory: gather, RMSNorm, bias, SwiGLU, conversion, and
// copies of cache blocks. Memory bandwidth bounds all of them with many rows, and the latency of
// their loads with few. So most move 16 bytes a thread at a time if rows are multiples of 16 bytes.
namespace nanovllm::cuda {
namespace {

// -- kernels

/// Every thread waits until the clock of its multiprocessor has advanced by num_cycles.
__global__ void spin_kernel(int64_t num_cycles) {
  launch_dependents();
  wait_for_previous_kernel();
  const int64_t begin = clock64();
  while (clock64() - begin < num_cycles) continue;
}

/// All threads of the grid together read `count` units of 16 bytes, bound by memory bandwidth.
__global__ void read_kernel(const uint4* from, int64_t count) {
  begin_kernel();
  uint32_t bits = 0;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count;
       i += int64_t{gridDim.x} * blockDim.x) {
    const uint4 x = from[i];
    bits |= x.x | x.y | x.z | x.w;
  }
  if (bits == 1) __nanosleep(1);  // so that the compiler keeps the loads
}

/// out[i] = table[rows[i] - first], or zeros if the table has no such row. A thread block copies
/// one row. A Unit is 16 bytes, or 2 where rows are no multiple of 16 bytes.
template <class Unit>
__global__ void gather_kernel(Unit* out, const Unit* table, const int32_t* rows, int64_t width,
                              int64_t first, int64_t num_rows) {
  begin_kernel();
  const int64_t row = rows[blockIdx.x] - first;
  const bool exists = 0 <= row && row < num_rows;
  for (int64_t i = threadIdx.x; i < width; i += blockDim.x)
    out[blockIdx.x * width + i] = exists ? table[row * width + i] : Unit{};
}

/// out = x / rms(x) * weight for few rows, which is bound by latency. A warp, or with kBlockRows a
/// thread block, computes a row; a thread has up to kVectors vectors of N elements of it.
template <class T, int N, int kVectors, bool kBlockRows>
__global__ void __launch_bounds__(kBlockRows ? 1024 : 256)
    rms_norm_few_kernel(T* out, const T* in, const float* weight, int width, float eps,
                        int num_rows) {
  launch_dependents();
  __shared__ float sums[32];
  const int group_size = kBlockRows ? blockDim.x : 32;
  const int thread = kBlockRows ? threadIdx.x : threadIdx.x % 32;
  const int row = kBlockRows ? blockIdx.x : blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
  const int64_t first = int64_t{row} * width;
  const auto column = [&](int j) { return (j * group_size + thread) * N; };
  Vec<float, N> w[kVectors];
#pragma unroll
  for (int j = 0; j < kVectors; ++j)
    if (column(j) < width) w[j] = load<N>(weight + column(j));
  wait_for_previous_kernel();
  if (row >= num_rows) return;
  Vec<T, N> x[kVectors];
#pragma unroll
  for (int j = 0; j < kVectors; ++j)
    if (column(j) < width) x[j] = load<N>(in + first + column(j));
  float squares = 0;
#pragma unroll
  for (int j = 0; j < kVectors; ++j)
    if (column(j) < width) squares = add_squares(x[j], squares);
  squares = kBlockRows ? block_reduce(squares, sums, Sum()) : warp_sum(squares);
  const float factor = rms_factor(squares, width, eps);
#pragma unroll
  for (int j = 0; j < kVectors; ++j)
    if (column(j) < width) store<N>(out + first + column(j), normed(x[j], factor, w[j]));
}

constexpr int kMostNormThreads = 512;
/// Threads of rms_norm_kernel that run on a multiprocessor at once.
template <int kVectors>
constexpr int kNormThreads = kVectors <= 2 ? 1024 : 512;

/// out = x / rms(x) * weight for many rows, which is bound by memory bandwidth. A thread block
/// takes row after row, and loads its next row before it computes one. A thread keeps up to
/// kVectors vectors of N elements of both rows in registers, and the weights of its columns.
template <class T, int N, int kVectors>
__global__ void __launch_bounds__(kMostNormThreads, kNormThreads<kVectors> / kMostNormThreads)
    rms_norm_kernel(T* out, const T* in, const float* weight, int width, float eps, int num_rows) {
  launch_dependents();
  __shared__ float sums[2][32];  // rows use them in turn, so that one barrier a row is enough
  const auto column = [&](int j) {
    return (j * static_cast<int>(blockDim.x) + static_cast<int>(threadIdx.x)) * N;
  };
  Vec<float, N> w[kVectors];
#pragma unroll
  for (int j = 0; j < kVectors; ++j)
    if (column(j) < width) w[j] = load<N>(weight + column(j));
  wait_for_previous_kernel();
  Vec<T, N> x[kVectors], next[kVectors];
  const auto load_row = [&](Vec<T, N>(&to)[kVectors], int row) {
#pragma unroll
    for (int j = 0; j < kVectors; ++j)
      if (row < num_rows && column(j) < width)
        to[j] = load<N>(in + int64_t{row} * width + column(j));
  };
  load_row(x, blockIdx.x);
  for (int row = blockIdx.x, turn = 0; row < num_rows; row += gridDim.x, turn ^= 1) {
    load_row(next, row + gridDim.x);
    float squares = 0;
#pragma unroll
    for (int j = 0; j < kVectors; ++j)
      if (column(j) < width) squares = add_squares(x[j], squares);
    const float factor = rms_factor(block_reduce(squares, sums[turn], Sum()), width, eps);
#pragma unroll
    for (int j = 0; j < kVectors; ++j) {
      if (column(j) < width)
        store<N>(out + int64_t{row} * width + column(j), normed(x[j], factor, w[j]));
      x[j] = next[j];
    }
  }
}

/// The numbers of columns of a token's q, k and v, and the weights of the norms over all heads of q
/// and over all heads of k.
struct WholeNormRow {
  const float *q_weight, *k_weight, *k_counted;
  int q_size, kv_size;
  float q_columns, k_columns, eps;
};

/// squares[t] = (sum of q[t]^2, sum of k[t]^2). A thread block computes one token.
template <class T>
__global__ void sum_squares_kernel(float4* squares, const T* qkv, const WholeNormRow norms) {
  begin_kernel();
  __shared__ float sums[2][32];
  const T* const q = qkv + int64_t{blockIdx.x} * (norms.q_size + 2 * norms.kv_size);
  const T* const k = q + norms.q_size;
  float of_q = 0, of_k = 0;
  for (int i = threadIdx.x; i < norms.q_size; i += blockDim.x)
    of_q += to_float(q[i]) * to_float(q[i]);
  for (int i = threadIdx.x; i < norms.kv_size; i += blockDim.x)
    of_k += to_float(k[i]) * to_float(k[i]) * (norms.k_counted != nullptr ? norms.k_counted[i] : 1);
  of_q = block_reduce(of_q, sums[0], Sum());
  of_k = block_reduce(of_k, sums[1], Sum());
  if (threadIdx.x == 0) squares[blockIdx.x] = make_float4(of_q, of_k, 0, 0);
}

/// q and k become q / rms(q) * weight and k / rms(k) * weight, where each rms is that of all
/// columns of the token, from `squares`. A thread block computes one token.
template <class T>
__global__ void scale_by_squares_kernel(T* qkv, const float4* squares, const WholeNormRow norms) {
  begin_kernel();
  T* const q = qkv + int64_t{blockIdx.x} * (norms.q_size + 2 * norms.kv_size);
  const float4 sums = squares[blockIdx.x];
  const float of_q = rsqrtf(sums.x / norms.q_columns + norms.eps);
  const float of_k = rsqrtf(sums.y / norms.k_columns + norms.eps);
  for (int i = threadIdx.x; i < norms.q_size + norms.kv_size; i += blockDim.x) {
    const bool is_k = i >= norms.q_size;
    const float weight = is_k ? norms.k_weight[i - norms.q_size] : norms.q_weight[i];
    q[i] = from_float<T>(to_float(q[i]) * (is_k ? of_k : of_q) * weight);
  }
}

/// x += y. A thread block computes one row of x. The rows of y are y_stride apart; with 0 one row
/// of y is added to every row.
template <class T, class Y>
__global__ void add_kernel(T* x, const Y* y, int width, int64_t y_stride) {
  begin_kernel();
  x += int64_t{blockIdx.x} * width;
  y += blockIdx.x * y_stride;
  for (int i = threadIdx.x; i < width; i += blockDim.x)
    x[i] = from_float<T>(to_float(x[i]) + to_float(y[i]));
}

/// out = x converted to another float type. Each thread converts one element, then strides over the
/// grid.
template <class To, class From>
__global__ void convert_kernel(To* out, const From* x, int64_t count) {
  begin_kernel();
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += step)
    out[i] = from_float<To>(to_float(x[i]));
}

/// out = silu(gate) * up for the two halves of each row of gate_up. The grid is (parts of a row,
/// rows), and a thread computes N neighbours of each of its rows.
template <class T, int N>
__global__ void silu_mul_kernel(T* out, const T* gate_up, int width, int num_rows) {
  begin_kernel();
  const int column = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x) * N;
  if (column >= width) return;
  for (int64_t row = blockIdx.y; row < num_rows; row += gridDim.y) {
    const T* const from = gate_up + row * 2 * width + column;
    const Vec<T, N> gate = load<N>(from), up = load<N>(from + width);
    float y[N];
#pragma unroll
    for (int i = 0; i < N; ++i) y[i] = swiglu(to_float(gate.x[i]), to_float(up.x[i]));
    store<N>(out + row * width + column, rounded<T>(y));
  }
}

/// Copies blocks of the KV cache. The grid is (copies, 2 * layers): a thread block copies K or V of
/// one block in one layer. The unit of stride and width is 16 bytes.
__global__ void copy_blocks_kernel(uint4* pool, const BlockCopy* copies, int64_t pool_stride,
                                   int64_t width) {
  begin_kernel();
  const BlockCopy copy = copies[blockIdx.x];
  uint4* const layer = pool + blockIdx.y * pool_stride;
  for (int64_t i = threadIdx.x; i < width; i += blockDim.x)
    layer[copy.to * width + i] = layer[copy.from * width + i];
}

}  // namespace

// -- launchers

void gather_rows(Launch where, Tensor out, Tensor table, Tensor rows, int64_t first) {
  check_args(
      out.shape[0] == rows.shape[0] && out.shape[1] == table.shape[1] && out.dtype == table.dtype,
      "gather_rows: out must be [rows, table's columns], of the table's dtype");
  const int64_t row_bytes = out.shape[1] * static_cast<int64_t>(dtype_size(out.dtype));
  const auto run = [&](auto unit) {
    using Unit = decltype(unit);
    const int64_t width = row_bytes / static_cast<int64_t>(sizeof(Unit));
    launch(where, gather_kernel<Unit>, blocks_for(rows.shape[0]),
           static_cast<int>(std::clamp<int64_t>((width + 31) / 32 * 32, 32, 256)), 0,
           out.as<Unit>(), table.as<const Unit>(), rows.as<const int32_t>(), width, first,
           table.shape[0]);
  };
  if (row_bytes % 16 == 0) run(uint4());
  else run(uint16_t());
}

void rms_norm(Launch where, Tensor out, Tensor x, const Norm& norm) {
  const auto width = static_cast<int>(x.shape[1]), num_rows = static_cast<int>(x.shape[0]);
  check_args(
      out.shape == x.shape && norm.weight.size() == width && norm.weight.dtype == DType::kF32,
      "rms_norm: out must be of x's shape, the weight float32 [columns of x]");
  constexpr int kFewRows = 1024, kMaxWidth = 16384;
  check_args(width <= kMaxWidth, "rms_norm: a row has more than 16384 elements");
  with_float_type(x.dtype, [&](auto type) {
    using T = decltype(type);
    const auto run = [&](auto kernel, unsigned num_blocks, int threads) {
      launch(where, kernel, num_blocks, threads, 0, out.as<T>(), x.as<const T>(),
             norm.weight.as<const float>(), width, norm.eps, num_rows);
    };
    const auto threads_of_row = [&](int per_thread) {
      return (width + 32 * per_thread - 1) / (32 * per_thread) * 32;
    };
    const auto run_many = [&]<int N, int kVectors>() {
      const int threads = threads_of_row(kVectors * N);
      const int most_blocks = where.num_sms * (kNormThreads<kVectors> / threads);
      run(rms_norm_kernel<T, N, kVectors>, std::min(num_rows, most_blocks), threads);
    };
    constexpr int N = kPer16Bytes<T>;
    const bool has_vectors = width % N == 0, is_few = has_vectors && num_rows <= kFewRows;
    if (is_few && width <= 4 * 32 * N)
      run(rms_norm_few_kernel<T, N, 4, false>, blocks_for(num_rows, 8), 256);
    else if (is_few && width <= 1024 * N)
      run(rms_norm_few_kernel<T, N, 1, true>, num_rows, threads_of_row(N));
    else if (has_vectors && width <= kMostNormThreads * 2 * N) run_many.template operator()<N, 2>();
    else if (has_vectors && width <= kMostNormThreads * 4 * N) run_many.template operator()<N, 4>();
    else run_many.template operator()<1, kMaxWidth / kMostNormThreads>();
  });
}

static WholeNormRow whole_norm_row(const Tensor& squares, const Tensor& qkv,
                                   const WholeNorms& norms) {
  const int64_t q = norms.q_weight.size(), k = norms.k_weight.size();
  check_args(squares.shape[0] == qkv.shape[0] && squares.shape[1] == 4 &&
                 q + 2 * k == qkv.shape[1] && (!norms.k_counted || norms.k_counted.size() == k),
             "norm_whole: wrong shapes");
  return {norms.q_weight.as<const float>(),
          norms.k_weight.as<const float>(),
          norms.k_counted.as<const float>(),
          static_cast<int>(q),
          static_cast<int>(k),
          static_cast<float>(norms.q_columns),
          static_cast<float>(norms.k_columns),
          norms.eps};
}

void sum_squares(Launch where, Tensor squares, Tensor qkv, const WholeNorms& norms) {
  const WholeNormRow row = whole_norm_row(squares, qkv, norms);
  with_float_type(qkv.dtype, [&](auto type) {
    using T = decltype(type);
    launch(where, sum_squares_kernel<T>, static_cast<unsigned>(qkv.shape[0]), 512, 0,
           squares.as<float4>(), qkv.as<const T>(), row);
  });
}

void scale_by_squares(Launch where, Tensor qkv, Tensor squares, const WholeNorms& norms) {
  const WholeNormRow row = whole_norm_row(squares, qkv, norms);
  with_float_type(qkv.dtype, [&](auto type) {
    using T = decltype(type);
    launch(where, scale_by_squares_kernel<T>, static_cast<unsigned>(qkv.shape[0]), 512, 0,
           qkv.as<T>(), squares.as<const float4>(), row);
  });
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
      launch(where, add_kernel<T, float>, blocks_for(x.shape[0]), 256, 0, x.as<T>(),
             y.as<const float>(), width, int64_t{0});
    else
      launch(where, add_kernel<T, T>, blocks_for(x.shape[0]), 256, 0, x.as<T>(), y.as<const T>(),
             width, int64_t{width});
  });
}

void convert(Launch where, Tensor out, Tensor x) {
  check_args(out.size() == x.size(), "convert: out must have as many elements as x");
  with_float_type(out.dtype, [&](auto to) {
    with_float_type(x.dtype, [&](auto from) {
      using To = decltype(to);
      using From = decltype(from);
      launch(where, convert_kernel<To, From>, blocks_for(where.num_sms * 8), 256, 0, out.as<To>(),
             x.as<const From>(), x.size());
    });
  });
}

void silu_mul(Launch where, Tensor out, Tensor gate_up) {
  check_args(gate_up.shape[0] == out.shape[0] && gate_up.shape[1] == 2 * out.shape[1] &&
                 gate_up.dtype == out.dtype,
             "silu_mul: gate_up must be [rows of out, 2 * columns of out], of out's dtype");
  const auto num_rows = static_cast<int>(out.shape[0]), width = static_cast<int>(out.shape[1]);
  with_float_type(out.dtype, [&](auto type) {
    using T = decltype(type);
    const auto run = [&](auto kernel, int per_thread) {
      constexpr int kThreads = 128, kMaxGridY = 65535;
      launch(where, kernel,
             dim3(blocks_for(width, per_thread * kThreads), std::min(num_rows, kMaxGridY)),
             kThreads, 0, out.as<T>(), gate_up.as<const T>(), width, num_rows);
    };
    if (width % kPer16Bytes<T> == 0) run(silu_mul_kernel<T, kPer16Bytes<T>>, kPer16Bytes<T>);
    else run(silu_mul_kernel<T, 1>, 1);
  });
}

void copy_blocks(Launch where, const KvCache& kv, std::span<const BlockCopy> copies) {
  const int64_t bytes = kv.num_kv_heads * kv.entry_bytes();  // K or V in one layer
  check_args(bytes % 16 == 0, "copy_blocks: a block of the cache must be a multiple of 16 bytes");
  const dim3 grid(blocks_for(static_cast<int64_t>(copies.size())), blocks_for(2 * kv.num_layers));
  launch(where, copy_blocks_kernel, grid, 256, 0, static_cast<uint4*>(kv.data), copies.data(),
         kv.num_blocks * bytes / 16, bytes / 16);
}

void read_all(Launch where, const void* memory, size_t bytes) {
  launch(where, read_kernel, blocks_for(4 * where.num_sms), 512, 0,
         static_cast<const uint4*>(memory), static_cast<int64_t>(bytes / sizeof(uint4)));
}

void spin(Launch where, int64_t num_cycles) {
  launch(where, spin_kernel, blocks_for(where.num_sms), 128, 0, num_cycles);
}

}  // namespace nanovllm::cuda
