#pragma once

#include "nanovllm/ops/cuda/device/device.cuh"
#include "nanovllm/ops/cuda/gemm/gemm_args.h"
#include "nanovllm/ops/cuda/gemm/quantized/quantized_weight.h"

// How kernels that multiply with mma.sync or wgmma get from the bytes of a row of w to pairs of the
// 16-bit type T, the operands of the tensor cores. Of each kChunk columns of a row, the four lanes
// of a quad have kPieces pieces of 16 bytes each. A piece holds kGroups / kPieces groups, and a
// group is four pairs of every lane, 32 columns in all. x must give the same columns to a lane: the
// first pair is at x_column(), the others follow it, directly if kInOrder, else 8 columns apart.
//
// Values are exact in T, so only the sums are scaled. kFine: each group has its own scales, not the
// whole chunk.
namespace nanovllm::cuda {

/// Word i of four, where i becomes a constant when loops are unrolled.
__device__ inline uint32_t word(const uint4& v, int i) {
  return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w;
}

/// Not quantized.
template <class T_>
struct PlainFormat {
  using T = T_;
  struct Scales {};
  static constexpr int kChunk = 64, kPieces = 2, kGroups = 2;
  static constexpr bool kScaled = false, kFine = false, kInOrder = true;
  static __device__ int x_column(int group, int lane) { return group * 32 + lane * 8; }
  static __device__ int64_t row_bytes(int k) { return int64_t{k} * 2; }
  static __device__ uint32_t zero(uint32_t) { return 0; }
  static __device__ void unpack(const uint4& piece, int, uint32_t, uint32_t (&pairs)[4]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) pairs[i] = word(piece, i);
  }
};

/// a - b of two pairs.
template <class T>
__device__ __forceinline__ uint32_t subtract_pairs(uint32_t a, uint32_t b) {
  if constexpr (std::is_same_v<T, F16>)
    return bits_as<uint32_t>(__hsub2(bits_as<__half2>(a), bits_as<__half2>(b)));
  else return bits_as<uint32_t>(__hsub2(bits_as<__nv_bfloat162>(a), bits_as<__nv_bfloat162>(b)));
}
template <class T>
__device__ __forceinline__ uint32_t multiply_pairs(uint32_t a, uint32_t b) {
  if constexpr (std::is_same_v<T, F16>)
    return bits_as<uint32_t>(__hmul2(bits_as<__half2>(a), bits_as<__half2>(b)));
  else return bits_as<uint32_t>(__hmul2(bits_as<__nv_bfloat162>(a), bits_as<__nv_bfloat162>(b)));
}

/// What all quantized formats share.
template <class T_, bool kFine_>
struct QuantizedFormats {
  using T = T_;
  using Scales = QuantizedWeight;
  static constexpr bool kScaled = true, kFine = kFine_;
  static constexpr int kChunk = kQuantizedChunk, kGroups = 4;
  /// Of integers (quantized_place()).
  static __device__ int x_column(int group, int lane) { return group * 32 + lane * 2; }
  static __device__ int padded(int k) { return (k + kChunk - 1) / kChunk * kChunk; }
  /// The scale in a word of integers.
  static __device__ float scale(const QuantizedWeight& w, uint32_t scale_word) {
    return w.has_bf16_scales ? __uint_as_float(scale_word << 16)
                             : __half2float(__ushort_as_half(static_cast<uint16_t>(scale_word)));
  }
};

template <class T_>
struct E4M3Format : QuantizedFormats<T_, false> {
  using T = T_;
  static constexpr int kPieces = 2;
  static constexpr bool kInOrder = true;
  static __device__ int x_column(int group, int lane) {
    return group / 2 * 64 + lane * 16 + group % 2 * 8;
  }
  static __device__ int64_t row_bytes(int k) { return QuantizedFormats<T, false>::padded(k); }
  static __device__ float scale(const QuantizedWeight&, uint32_t scale_word) {
    return __uint_as_float(scale_word);
  }
  static __device__ uint32_t zero(uint32_t) { return 0; }
  /// The exponent and the mantissa of E4M3 are moved to those of T. That divides by a power of two,
  /// because T's exponent is biased more; so this multiplies by it. It also suits subnormal
  /// numbers.
  static __device__ uint32_t pair_of(uint32_t two_bytes_at_8) {
    constexpr bool kIsF16 = std::is_same_v<T, F16>;
    constexpr int kShift = kIsF16 ? 1 : 4;
    constexpr uint32_t kMask = kIsF16 ? 0x3f803f80 : 0x07f007f0;
    constexpr uint32_t kFactor = kIsF16 ? 0x5c005c00 : 0x7b807b80;  // 2^8, 2^120
    const uint32_t moved = two_bytes_at_8 >> kShift & kMask;
    return multiply_pairs<T>((two_bytes_at_8 & 0x80008000) | moved, kFactor);
  }
  static __device__ void unpack(const uint4& piece, int group, uint32_t, uint32_t (&pairs)[4]) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const uint32_t four = word(piece, group % 2 * 2 + i);
      pairs[2 * i] = pair_of(__byte_perm(four, 0, 0x1404));
      pairs[2 * i + 1] = pair_of(__byte_perm(four, 0, 0x3424));
    }
  }
};

template <class T_, bool kFine_>
struct Int8Format : QuantizedFormats<T_, kFine_> {
  using T = T_;
  static constexpr int kPieces = 2;
  static constexpr bool kInOrder = false;
  static __device__ int64_t row_bytes(int k) { return QuantizedFormats<T, kFine_>::padded(k); }
  // A byte becomes the lowest bits of the mantissa of 2^23, or with float16 of 1024; so does the
  // zero point, and the difference is exact.
  static __device__ uint32_t zero(uint32_t scale_word) {
    if constexpr (std::is_same_v<T, F16>) return (0x6400 + (scale_word >> 16)) * 0x10001u;
    else return 0x4b000000 + (scale_word >> 16);
  }
  static __device__ void unpack(const uint4& piece, int group, uint32_t zero,
                                uint32_t (&pairs)[4]) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const uint32_t four = word(piece, group % 2 * 2 + i);
      if constexpr (std::is_same_v<T, F16>) {
        pairs[2 * i] = subtract_pairs<T>(__byte_perm(four, 0x64646464, 0x4140), zero);
        pairs[2 * i + 1] = subtract_pairs<T>(__byte_perm(four, 0x64646464, 0x4342), zero);
      } else {
        const auto value = [&](int at) {
          return __uint_as_float(__byte_perm(four, 0x4b000000, 0x7440 + at)) -
                 __uint_as_float(zero);
        };
        pairs[2 * i] = pack<T>(value(0), value(1));
        pairs[2 * i + 1] = pack<T>(value(2), value(3));
      }
    }
  }
};

template <class T_, bool kFine_>
struct Int4Format : QuantizedFormats<T_, kFine_> {
  using T = T_;
  static constexpr int kPieces = 1;
  static constexpr bool kInOrder = false;
  static __device__ int64_t row_bytes(int k) { return QuantizedFormats<T, kFine_>::padded(k) / 2; }
  // Four bits become the lowest bits of the mantissa of 128, or with float16 of 1024.
  static constexpr uint32_t kBase = std::is_same_v<T, F16> ? 0x6400 : 0x4300;
  static __device__ uint32_t zero(uint32_t scale_word) {
    return (kBase + (scale_word >> 16)) * 0x10001u;
  }
  static __device__ void unpack(const uint4& piece, int group, uint32_t zero,
                                uint32_t (&pairs)[4]) {
    const uint32_t eight = word(piece, group);
#pragma unroll
    for (int i = 0; i < 4; ++i)
      pairs[i] = subtract_pairs<T>((eight >> (4 * i) & 0x000f000f) | kBase * 0x10001u, zero);
  }
};

/// Calls body(Format()) with the format of a quantized weight.
template <class T, class Body>
void with_quantized_format(const QuantizedWeight& w, Body body) {
  const bool is_fine = w.group_shift == 5;
  switch (w.format) {
    case QuantizedFormat::kE4M3:
      return body(E4M3Format<T>());
    case QuantizedFormat::kInt8:
      return is_fine ? body(Int8Format<T, true>()) : body(Int8Format<T, false>());
    case QuantizedFormat::kInt4:
      return is_fine ? body(Int4Format<T, true>()) : body(Int4Format<T, false>());
  }
}

}  // namespace nanovllm::cuda
