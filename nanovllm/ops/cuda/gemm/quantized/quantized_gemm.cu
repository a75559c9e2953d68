#include "nanovllm/ops/cuda/gemm/quantized/quantized_gemm.h"

#include "nanovllm/ops/cuda/gemm/quantized/small.h"
#include "nanovllm/ops/cuda/gemm/quantized/weight_formats.cuh"

namespace nanovllm::cuda {
namespace {

// -- kernel

/// out [n, k] = (w - zero point) * scale as 16-bit floats. A thread block takes some chunks of 128
/// columns of a row at a time. In a chunk a thread converts its part of a group of 32 columns
/// (weight_formats.cuh) and stores eight columns. Memory bandwidth bounds it.
template <class Format>
__global__ void dequantize_kernel(typename Format::T* out, const QuantizedWeight w) {
  using T = typename Format::T;
  constexpr int kThreadsPerChunk = 4 * Format::kGroups;
  begin_kernel();
  const int chunks = w.padded_columns() / Format::kChunk;
  const int64_t row_bytes = Format::row_bytes(w.k);
  const int lane = threadIdx.x % 4, group = threadIdx.x / 4 % Format::kGroups;
  const int64_t per_block = blockDim.x / kThreadsPerChunk;
  const int64_t count = int64_t{w.n} * chunks;
  // All lanes of a warp take part in each step, because they exchange words.
  for (int64_t first = blockIdx.x * per_block; first < count; first += gridDim.x * per_block) {
    const int64_t item =
        min(first + static_cast<int64_t>(threadIdx.x) / kThreadsPerChunk, count - 1);
    const int row = static_cast<int>(item / chunks), chunk = static_cast<int>(item % chunks);
    const auto* const values = static_cast<const unsigned char*>(w.values) + row * row_bytes +
                               chunk * (Format::kPieces * 64) + lane * 16;
    constexpr int kPerPiece = Format::kGroups / Format::kPieces;
    const uint4 piece = *reinterpret_cast<const uint4*>(values + group / kPerPiece * 64);
    const int column = chunk * Format::kChunk + (Format::kFine ? group * 32 : 0);
    const uint32_t scale_word = w.scales[int64_t{row >> w.row_shift} * w.row_stride +
                                         int64_t{column >> w.group_shift} * w.group_stride];
    const float scale = Format::scale(w, scale_word);
    uint32_t pairs[4];
    // The group is not a constant here, so the compiler selects among four.
#pragma unroll
    for (int i = 0; i < Format::kGroups; ++i)
      if (i == group) Format::unpack(piece, i, Format::zero(scale_word), pairs);
#pragma unroll
    for (uint32_t& pair : pairs) {
      const auto two = bits_as<Vec<T, 2>>(pair);
      pair = pack<T>(to_float(two.x[0]) * scale, to_float(two.x[1]) * scale);
    }
    uint4 eight = {pairs[0], pairs[1], pairs[2], pairs[3]};
    int at;
    if constexpr (Format::kInOrder) {
      at = Format::x_column(group, lane);
    } else {
      eight = transpose_quad(pairs[0], pairs[1], pairs[2], pairs[3]);
      at = group * 32 + lane * 8;
    }
    at += chunk * Format::kChunk;
    if (at < w.k) *reinterpret_cast<uint4*>(out + int64_t{row} * w.k + at) = eight;
  }
}

bool fits(Launch where, const GemmArgs& args, DType dtype, bool has_one_tile) {
  size_t bytes = 0;
  with_16bit_type(dtype, [&](auto type) {
    with_quantized_format<decltype(type)>(*args.quantized, [&](auto format) {
      bytes = quantized_small_bytes<decltype(format)>(args, has_one_tile);
    });
  });
  return bytes <= static_cast<size_t>(where.shared_bytes);
}

/// Whether a thread block has one tile: if several do not fit in its shared memory, or, without
/// SwiGLU, if thread blocks of 32 rows of w would leave many multiprocessors without one. With more
/// rows, thread blocks of two tiles are better: each multiprocessor has one and all end at the same
/// time, while some multiprocessors would have three thread blocks of one tile and others one.
bool has_one_tile(Launch where, const GemmArgs& args, DType dtype) {
  const bool leaves_many = (args.n + 15) / 16 * 2 < 3 * where.num_sms;
  return (args.epilogue != Epilogue::kSwiglu && leaves_many) || !fits(where, args, dtype, false);
}

}  // namespace

// -- launchers

bool supports_quantized_small(Launch where, const GemmArgs& args, DType dtype) {
  const bool is_swiglu = args.epilogue == Epilogue::kSwiglu;
  return args.num_tokens <= kFewTokens && args.n % 8 == 0 && args.n >= 16 && args.k % 8 == 0 &&
         (is_swiglu || args.n % 16 == 0) && dtype_size(dtype) == 2 &&
         fits(where, args, dtype, has_one_tile(where, args, dtype));
}

int num_quantized_norm_parts(Launch where, const GemmArgs& args, DType dtype) {
  return blocks_for(args.n, has_one_tile(where, args, dtype) ? 16 : 32);
}

void quantized_small_gemm(Launch where, const GemmArgs& args, DType dtype,
                          const DeferredNorm& norm) {
  check_args(supports_quantized_small(where, args, dtype) && args.norm == nullptr,
             "quantized_small_gemm: a shape that it does not compute");
  const bool one = has_one_tile(where, args, dtype);
  const QuantizedWeight& w = *args.quantized;
  with_16bit_type(dtype, [&](auto type) {
    using T = decltype(type);
    with_quantized_format<T>(w, [&](auto format) {
      const Peers peers = args.peers != nullptr ? *args.peers : Peers();
      run_quantized_small<decltype(format)>(where, {args, w, norm, peers}, one);
    });
  });
}

void dequantize(Launch where, Tensor out, const QuantizedWeight& w) {
  check_args(out.shape[0] == w.n && out.shape[1] == w.k && w.k % 8 == 0,
             "dequantize: wrong shapes");
  with_16bit_type(out.dtype, [&](auto type) {
    using T = decltype(type);
    with_quantized_format<T>(w, [&](auto format) {
      launch(where, dequantize_kernel<decltype(format)>, blocks_for(16 * where.num_sms), 256, 0,
             out.as<T>(), w);
    });
  });
}

}  // namespace nanovllm::cuda
