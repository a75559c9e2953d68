// Matrix products by AMX. Source: Intel, "Architecture Instruction Set Extensions Programming
// Reference", chapter 3. Like simd.h, this is only for sources in kernels/, and everything in it is
// local to them.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "nanovllm/ops/cpu/kernels/simd.h"

namespace nanovllm::cpu::NANOVLLM_ISA {
namespace {

/// Configures the tile registers of this thread while the object lives, if they are `used`: 0 to 3
/// are sums, 16 rows of 16; 4 and 5 have x, 16 rows of x_bytes; 6 and 7 have w, x_bytes / 4 rows of
/// 16 words, which are four bytes or two bfloat16 of the same column.
class TileRegisters {
 public:
  explicit TileRegisters(bool used = true, int x_bytes = 64) : used_(used) {
    if (!used) return;
    const auto bytes = static_cast<uint16_t>(x_bytes);
    const auto rows = static_cast<uint8_t>(x_bytes / 4);
    struct alignas(64) {
      uint8_t palette = 1, start_row = 0, reserved[14] = {};
      uint16_t row_bytes[16];
      uint8_t rows[16];
    } config = {.row_bytes = {64, 64, 64, 64, bytes, bytes, 64, 64},
                .rows = {16, 16, 16, 16, 16, 16, rows, rows}};
    asm volatile("ldtilecfg %0" ::"m"(config));
  }
  ~TileRegisters() {
    if (used_) _tile_release();
  }
  TileRegisters(const TileRegisters&) = delete;

 private:
  const bool used_;
};

/// Multiplies bytes, `depth` columns of x at a time: 32, or a multiple of 64.
class AmxTiles {
 public:
  static constexpr int kRows = 16, kColumns = 32;
  /// Products of the high and of the low bytes of x.
  struct Products {
    alignas(64) int32_t high[kRows][kColumns], low[kRows][kColumns];
  };

  AmxTiles(bool used, int depth)
      : depth_(depth), part_(depth < 64 ? depth : 64), registers_(used, part_) {}

  /// to = x w for kRows rows. A row of x has `depth` high bytes, then as many low ones, signed; w
  /// has depth / 4 rows of four unsigned bytes of each column.
  [[gnu::always_inline]] void multiply(Products& to, const char* x, int64_t x_stride,
                                       const char* w) const {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (int at = 0; at < depth_; at += part_, w += part_ * kColumns) {
      _tile_loadd(4, x + at, x_stride);
      _tile_loadd(5, x + depth_ + at, x_stride);
      _tile_loadd(6, w, kColumns * 4);
      _tile_loadd(7, w + 64, kColumns * 4);
      _tile_dpbsud(0, 4, 6);
      _tile_dpbsud(1, 4, 7);
      _tile_dpbsud(2, 5, 6);
      _tile_dpbsud(3, 5, 7);
    }
    _tile_stored(0, to.high, kColumns * 4);
    _tile_stored(1, to.high[0] + 16, kColumns * 4);
    _tile_stored(2, to.low, kColumns * 4);
    _tile_stored(3, to.low[0] + 16, kColumns * 4);
  }

 private:
  const int depth_, part_;
  const TileRegisters registers_;
};

#if defined(__AMX_BF16__)
/// A tile of bfloat16: 16 rows of x, 32 values of k, 16 columns of w.
constexpr int kAmxRows = 16, kAmxK = 32, kAmxColumns = 16;

/// The address of a matrix of tiles, and how many bytes its rows are apart.
template <class T>
struct TileRows {
  T* at;
  int64_t stride;
};
/// out [kTiles * 16, 32] = or += x [kTiles * 16, k] w, where w is [k / 2, 32] pairs of bfloat16,
/// with the TileRegisters of the default sizes. Each element is summed in the order of k. With
/// `ahead` bytes, that much of w is prefetched into the L2 cache.
template <int kTiles>
[[gnu::always_inline]] inline void multiply_bf16(TileRows<float> out, bool is_first,
                                                 TileRows<const Bf16> x, TileRows<const void> w,
                                                 int64_t k, int64_t ahead = 0) {
  float* const below = out.at + kAmxRows * (out.stride / static_cast<int64_t>(sizeof(float)));
  if (is_first) {
    _tile_zero(0);
    _tile_zero(1);
    if constexpr (kTiles > 1) {
      _tile_zero(2);
      _tile_zero(3);
    }
  } else {
    _tile_loadd(0, out.at, out.stride);
    _tile_loadd(1, out.at + kAmxColumns, out.stride);
    if constexpr (kTiles > 1) {
      _tile_loadd(2, below, out.stride);
      _tile_loadd(3, below + kAmxColumns, out.stride);
    }
  }
  const char* from_w = static_cast<const char*>(w.at);
  const char* from_x = reinterpret_cast<const char*>(x.at);
  for (int64_t i = 0; i < k; i += kAmxK, from_x += 64, from_w += kAmxK / 2 * w.stride) {
    if (ahead > 0) {
#pragma GCC unroll 32
      for (int64_t line = 0; line < kAmxK * kAmxColumns * 4; line += 64)
        __builtin_prefetch(from_w + ahead + line, 0, 2);
    }
    _tile_loadd(6, from_w, w.stride);
    _tile_loadd(7, from_w + 64, w.stride);
    _tile_loadd(4, from_x, x.stride);
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    if constexpr (kTiles > 1) {
      _tile_loadd(5, from_x + kAmxRows * x.stride, x.stride);
      _tile_dpbf16ps(2, 5, 6);
      _tile_dpbf16ps(3, 5, 7);
    }
  }
  _tile_stored(0, out.at, out.stride);
  _tile_stored(1, out.at + kAmxColumns, out.stride);
  if constexpr (kTiles > 1) {
    _tile_stored(2, below, out.stride);
    _tile_stored(3, below + kAmxColumns, out.stride);
  }
}

/// multiply_bf16() for `rows` rows, rounded up to whole tiles, at most two.
[[gnu::always_inline]] inline void multiply_bf16_rows(int64_t rows, TileRows<float> out,
                                                      bool is_first, TileRows<const Bf16> x,
                                                      TileRows<const void> w, int64_t k,
                                                      int64_t ahead = 0) {
  if (rows > kAmxRows) multiply_bf16<2>(out, is_first, x, w, k, ahead);
  else multiply_bf16<1>(out, is_first, x, w, k, ahead);
}
#endif

}  // namespace
}  // namespace nanovllm::cpu::NANOVLLM_ISA
