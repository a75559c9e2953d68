#pragma once

#include "nanovllm/ops/cuda/device/device.cuh"
#include "nanovllm/ops/cuda/gemm/gemm_args.h"
#include "nanovllm/ops/cuda/gemm/quantized/quantized_weight.h"

// How kernels that multiply with mma.sync or wgmma get from the bytes of a row of w to pairs of the
// 16-bit type T, the operands of the tensor cores. In each chunk of kChunk columns of a row, the
// four lanes of a quad have kPieces pieces of 16 bytes each. A piece holds kGroups / kPieces
// groups, and a group is four pairs of every lane, 32 columns in all. x must give the same columns
// to a lane: the first pair is at x_column(), the others follow it, directly if kInOrder, else 8
// columns apart.
//
// Values are exact in T, so only the sums are scaled. With kFine each group has its own scale,
// without it the whole chunk has one. If kHasOffset, unpack_raw() costs less than unpack(), and
// gives values to each of which offset() must be added: the sums of w x need offset() times the sum
// of x.
namespace nanovllm::cuda {

/// Word i of four, where i becomes a constant when loops are unrolled.
__device__ inline uint32_t word(const uint4& v, int i) {
  return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w;
}

/// (x & mask) | bits in one instruction; the compiler makes two of constants.
__device__ __forceinline__ uint32_t and_or(uint32_t x, uint32_t mask, uint32_t bits) {
  uint32_t y;
  asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(y) : "r"(x), "r"(mask), "r"(bits));
  return y;
}
/// A weight that is not quantized. If not kPadded, the last chunk of a row may have fewer columns.
template <class T_, bool kPadded_ = true>
struct PlainFormat {
  using T = T_;
  static constexpr bool kPadded = kPadded_;
  static constexpr int kChunk = 64, kPieces = 2, kGroups = 2;
  static constexpr bool kScaled = false, kFine = false, kInOrder = true, kHasOffset = false;
  static __device__ int x_column(int group, int lane) { return group * 32 + lane * 8; }
  static __device__ int64_t row_bytes(int k) { return int64_t{k} * 2; }
  static __device__ uint32_t zero(uint32_t) { return 0; }
  static __device__ void unpack(const uint4& piece, int, uint32_t, uint32_t (&pairs)[4]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) pairs[i] = word(piece, i);
  }
};

/// a - b, for both elements of a pair.
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

/// The base of all quantized formats. x_column() and scale() are those of integers.
template <class T_, bool kFine_>
struct QuantizedFormats {
  using T = T_;
  static constexpr bool kScaled = true, kFine = kFine_, kPadded = true;
  static constexpr int kChunk = kQuantizedChunk, kGroups = 4;
  /// The column of x for a lane's first pair of a group of integers (quantized_place()).
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
  static constexpr bool kHasOffset = false;
  static __device__ uint32_t zero(uint32_t) { return 0; }
  /// Converts two bytes, each in the lower half of 16 bits, to a pair. A shift moves the exponent
  /// and the mantissa of E4M3 to those of T. That divides by a power of two, because T's exponent
  /// is biased more, so a multiplication follows. Subnormal numbers are right too. Multiplications
  /// move the sign, because they have another pipe than logical operations and shifts.
  static __device__ uint32_t pair_of(uint32_t spread) {
    constexpr bool kIsF16 = std::is_same_v<T, F16>;
    constexpr int kShift = kIsF16 ? 7 : 4;
    constexpr uint32_t kFactor = kIsF16 ? 0x5c005c00 : 0x7b807b80;  // 2^8, 2^120
    const uint32_t signs = spread & 0x00800080;                     // to bit 15 - kShift
    return multiply_pairs<T>((signs * ((0x8000 >> kShift) / 0x80 - 1) + spread) << kShift, kFactor);
  }
  static __device__ uint32_t first_pair(uint32_t bytes) {
    return pair_of(__byte_perm(bytes, 0, 0x4140));
  }
  static __device__ void unpack(const uint4& piece, int group, uint32_t, uint32_t (&pairs)[4]) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const uint32_t four = word(piece, group % 2 * 2 + i);
      pairs[2 * i] = first_pair(four);
      pairs[2 * i + 1] = pair_of(__byte_perm(four, 0, 0x4342));
    }
  }
};

template <class T_, bool kFine_>
struct Int8Format : QuantizedFormats<T_, kFine_> {
  using T = T_;
  static constexpr int kPieces = 2;
  static constexpr bool kInOrder = false, kHasOffset = std::is_same_v<T, Bf16>;
  static __device__ int64_t row_bytes(int k) { return QuantizedFormats<T, kFine_>::padded(k); }
  // The byte and the zero point each become the lowest bits of the mantissa of 2^23, or with
  // float16 of 1024. So their difference is exact.
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
  /// The values minus 128, for bfloat16, whose mantissa has room for seven bits of a value. These
  /// are added to 128; then 256 is subtracted if the eighth bit is 0, and 128 if it is 1.
  static __device__ void unpack_raw(const uint4& piece, int group, uint32_t (&pairs)[4]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint32_t two =
          __byte_perm(word(piece, group % 2 * 2 + i / 2), 0, i % 2 == 0 ? 0x4140 : 0x4342);
      uint32_t subtracted;
      asm("lop3.b32 %0, %1, %2, %3, 0x6a;"  // (two & 0x00800080) ^ 0x43804380
          : "=r"(subtracted)
          : "r"(two), "r"(0x00800080), "r"(0x43804380));
      pairs[i] = subtract_pairs<T>(and_or(two, 0x007f007f, 0x43004300), subtracted);
    }
  }
  static __device__ float offset(uint32_t scale_word) {
    return 8388608.0f + 128 - __uint_as_float(__byte_perm(scale_word, 0x4b000000, 0x7632));
  }
};

template <class T_, bool kFine_>
struct Int4Format : QuantizedFormats<T_, kFine_> {
  using T = T_;
  static constexpr int kPieces = 1;
  static constexpr bool kInOrder = false, kHasOffset = std::is_same_v<T, Bf16>;
  static __device__ int64_t row_bytes(int k) { return QuantizedFormats<T, kFine_>::padded(k) / 2; }
  // The four bits become the lowest bits of the mantissa of 128, or with float16 of 1024.
  static constexpr uint32_t kBase = std::is_same_v<T, F16> ? 0x6400 : 0x4300;
  static __device__ uint32_t zero(uint32_t scale_word) {
    return (kBase + (scale_word >> 16)) * 0x10001u;
  }
  /// The values plus 128. The sums lose five of float32's bits when the offset is added, which is
  /// far less than bfloat16's rounding of the result. With float16, whose base is 1024, the loss
  /// would not be negligible.
  static __device__ void unpack_raw(const uint4& piece, int group, uint32_t (&pairs)[4]) {
    const uint32_t eight = word(piece, group);
#pragma unroll
    for (int i = 0; i < 4; ++i) pairs[i] = and_or(eight >> (4 * i), 0x000f000f, kBase * 0x10001u);
  }
  static __device__ float offset(uint32_t scale_word) {
    return 8388608.0f - 128 - __uint_as_float(__byte_perm(scale_word, 0x4b000000, 0x7632));
  }
  static __device__ void unpack(const uint4& piece, int group, uint32_t zero,
                                uint32_t (&pairs)[4]) {
    unpack_raw(piece, group, pairs);
#pragma unroll
    for (uint32_t& pair : pairs) pair = subtract_pairs<T>(pair, zero);
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
