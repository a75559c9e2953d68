// Products of bytes by AMX: Intel, "Architecture Instruction Set Extensions Programming Reference",
// chapter 3. As simd.h, only for sources in kernels/, and everything here is local to them.
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace nanovllm::cpu::NANOVLLM_ISA {
namespace {

/// The tile registers of this thread while the object lives, if they are to be `used`. It
/// multiplies `depth` columns of x at a time: 32, or a multiple of 64.
class AmxTiles {
 public:
  static constexpr int kRows = 16, kColumns = 32;
  /// Products of the high and of the low bytes of x.
  struct Products {
    alignas(64) int32_t high[kRows][kColumns], low[kRows][kColumns];
  };

  AmxTiles(bool used, int depth) : used_(used), depth_(depth), part_(depth < 64 ? depth : 64) {
    if (!used) return;
    // Tiles 0 to 3 are products, 4 and 5 bytes of x, 6 and 7 of w.
    const auto x_bytes = static_cast<uint16_t>(part_);
    struct alignas(64) {
      uint8_t palette = 1, start_row = 0, reserved[14] = {};
      uint16_t row_bytes[16];
      uint8_t rows[16];
    } config = {.row_bytes = {64, 64, 64, 64, x_bytes, x_bytes, 64, 64}, .rows = {}};
    for (int i = 0; i < 8; ++i) config.rows[i] = static_cast<uint8_t>(i < 6 ? kRows : part_ / 4);
    asm volatile("ldtilecfg %0" ::"m"(config));
  }
  ~AmxTiles() {
    if (used_) _tile_release();
  }
  AmxTiles(const AmxTiles&) = delete;

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
  const bool used_;
  const int depth_, part_;
};

}  // namespace
}  // namespace nanovllm::cpu::NANOVLLM_ISA
