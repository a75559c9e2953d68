// GEMMs of bfloat16 by AMX: Intel, "Architecture Instruction Set Extensions Programming Reference",
// chapter 3. Each output is summed in the order of k, so the bits of a row do not depend on the
// number of rows. gemm.h has the layout and the contract.
#if defined(__AMX_BF16__)
#include <immintrin.h>

#include "nanovllm/ops/cpu/kernels/gemm.h"
#include "nanovllm/ops/cpu/kernels/gemm_out.h"
#include "nanovllm/ops/cpu/kernels/simd.h"

namespace nanovllm::cpu::NANOVLLM_ISA {
namespace {

/// A tile has 16 rows of 64 bytes: of x 32 values of k, of w 16 columns of as many, of out 16
/// columns. A panel has two tiles side by side.
constexpr int kAmxRows = 16, kAmxK = 32, kAmxColumns = 32;

/// The tile registers of this thread, while the object lives: 0 to 3 are sums, 4 and 5 have x, 6
/// and 7 w.
struct Bf16Tiles {
  Bf16Tiles() {
    struct alignas(64) {
      uint8_t palette = 1, start_row = 0, reserved[14] = {};
      uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
      uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
    } config;
    asm volatile("ldtilecfg %0" ::"m"(config));
  }
  ~Bf16Tiles() { _tile_release(); }
  Bf16Tiles(const Bf16Tiles&) = delete;

  /// out [kTiles * 16, 32] = or += x [kTiles * 16, k] times the k values at w of a panel. With
  /// `ahead` bytes, that much of w is prefetched into the L2 cache.
  template <int kTiles>
  [[gnu::always_inline]] static void multiply(float* out, bool is_first, const Bf16* x,
                                              int64_t x_stride, const Bf16* w, int64_t k,
                                              int64_t ahead) {
    constexpr int64_t kOutStride = kGemmGroupColumns * static_cast<int64_t>(sizeof(float));
    float* const below = out + kAmxRows * kGemmGroupColumns;
    if (is_first) {
      _tile_zero(0);
      _tile_zero(1);
      if constexpr (kTiles > 1) {
        _tile_zero(2);
        _tile_zero(3);
      }
    } else {
      _tile_loadd(0, out, kOutStride);
      _tile_loadd(1, out + kAmxColumns / 2, kOutStride);
      if constexpr (kTiles > 1) {
        _tile_loadd(2, below, kOutStride);
        _tile_loadd(3, below + kAmxColumns / 2, kOutStride);
      }
    }
    constexpr int64_t kStep = kAmxK * kAmxColumns;  // elements of w
    const int64_t row_bytes = x_stride * static_cast<int64_t>(sizeof(Bf16));
    for (int64_t i = 0; i < k; i += kAmxK, w += kStep) {
      if (ahead > 0) {
        const char* const next = reinterpret_cast<const char*>(w) + ahead;
#pragma GCC unroll 32
        for (int64_t line = 0; line < kStep * 2; line += 64) __builtin_prefetch(next + line, 0, 2);
      }
      _tile_loadd(6, w, kAmxColumns * 4);
      _tile_loadd(7, w + kAmxColumns, kAmxColumns * 4);
      _tile_loadd(4, x + i, row_bytes);
      _tile_dpbf16ps(0, 4, 6);
      _tile_dpbf16ps(1, 4, 7);
      if constexpr (kTiles > 1) {
        _tile_loadd(5, x + i + kAmxRows * x_stride, row_bytes);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
      }
    }
    _tile_stored(0, out, kOutStride);
    _tile_stored(1, out + kAmxColumns / 2, kOutStride);
    if constexpr (kTiles > 1) {
      _tile_stored(2, below, kOutStride);
      _tile_stored(3, below + kAmxColumns / 2, kOutStride);
    }
  }
};

}  // namespace

/// In tiles of 16 or 32 rows. A block of x has as much of k as fits into the scratch memory.
void amx_task(const GemmCall& call, int64_t row, int64_t row_end, int64_t panel, int64_t panel_end,
              float* scratch) {
  constexpr int64_t kBlockElements = kGemmTaskRows * kGemmBlockK * 2;
  const int64_t rows = row_end - row;
  const int64_t padded_rows = (rows + kAmxRows - 1) / kAmxRows * kAmxRows;
  const int64_t most_k = kBlockElements / padded_rows / kAmxK * kAmxK, x_stride = most_k;
  auto* const x = reinterpret_cast<Bf16*>(scratch);
  float* const sums = scratch + kGemmTaskRows * kGemmBlockK;
  const int64_t panel_stride = call.panel_bytes / static_cast<int64_t>(sizeof(Bf16));
  // The time of few rows is that of reading w.
  constexpr int64_t kAhead = 32 << 10;
  const int64_t ahead = rows <= 2 * kAmxRows ? kAhead : 0;
  const Bf16Tiles tiles;
  for (int64_t group = panel; group < panel_end; group += kGroupPanels) {
    const int64_t panels = panel_end - group < kGroupPanels ? panel_end - group : kGroupPanels;
    const Bf16* const group_w = static_cast<const Bf16*>(call.panels) + group * panel_stride;
    for (int64_t begin = 0; begin < call.k; begin += most_k) {
      const int64_t k = call.k - begin < most_k ? call.k - begin : most_k;
      const int64_t padded_k = (k + kAmxK - 1) / kAmxK * kAmxK;
      for (int64_t r = 0; r < rows; ++r) {
        Bf16* const to = x + r * x_stride;
        const Bf16* const from = static_cast<const Bf16*>(call.x) + begin +
                                 (call.rows ? call.rows[row + r] : row + r) * call.x_stride;
        __builtin_memcpy(to, from, static_cast<size_t>(k) * sizeof(Bf16));
        __builtin_memset(to + k, 0, static_cast<size_t>(padded_k - k) * sizeof(Bf16));
      }
      for (int64_t p = 0; p < panels; ++p) {
        const Bf16* const w = group_w + p * panel_stride + begin * kColumns;
        float* const out = sums + p * kColumns;
        for (int64_t r = 0; r < padded_rows; r += 2 * kAmxRows) {
          const auto multiply = [&](auto multiply_tiles) {
            multiply_tiles(out + r * kGemmGroupColumns, begin == 0, x + r * x_stride, x_stride, w,
                           padded_k, ahead);
          };
          if (padded_rows - r > kAmxRows) multiply(Bf16Tiles::multiply<2>);
          else multiply(Bf16Tiles::multiply<1>);
        }
      }
    }
    store_panels<Bf16>(call, sums, row, rows, group, panels);
  }
}

}  // namespace nanovllm::cpu::NANOVLLM_ISA
#endif
