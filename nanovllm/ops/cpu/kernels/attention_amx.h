// Attention of bfloat16 in tiles of AMX: pairs of dimensions are multiplied for scores, pairs of
// keys for the weighted sum of V, for which the weights are rounded to bfloat16. Like simd.h, this
// is only for sources in kernels/, and everything in it is local to them.
#pragma once

#include "nanovllm/ops/cpu/kernels/amx.h"
#include "nanovllm/ops/cpu/kernels/attention_rows.h"

namespace nanovllm::cpu::NANOVLLM_ISA {
namespace {

/// A panel of V has kPairColumns dimensions and kPairPanel words of 32 bits. A word holds one
/// dimension of two neighbouring keys.
constexpr int kPairColumns = 2 * kAmxColumns, kPairPanel = kKeyBlock / 2 * kPairColumns;

/// The number of weights of a row that are multiplied: `keys` rounded up to whole tiles. The
/// weights behind the row's last key are zero.
inline int padded_keys(int keys) { return (keys + kAmxK - 1) / kAmxK * kAmxK; }

/// Makes the panels of V, one of [kKeyBlock / 2, kPairColumns] words for every kPairColumns
/// dimensions. Keys from `end` on may never have been written and become zero. The keys of the next
/// block are prefetched.
void pack_values(const KeyBlockArgs& a, int end) {
  alignas(64) uint16_t low[32], high[32];
  for (uint16_t i = 0; i < 32; ++i) {
    low[i] = static_cast<uint16_t>(i / 2 + i % 2 * 32);
    high[i] = static_cast<uint16_t>(low[i] + 16);
  }
  const __m512i take_low = _mm512_load_si512(low), take_high = _mm512_load_si512(high);
  const auto pack = [&](int key, __mmask32 first_there, __mmask32 second_there) {
    const auto* const row = key_row<Bf16>(a.values, key, a.head_dim);
    float* to = a.panel + key / 2 * kPairColumns;
    for (int d = 0; d < a.head_dim; d += kPairColumns, to += kPairPanel) {
      const __m512i first = _mm512_maskz_loadu_epi16(first_there, row + d);
      const __m512i second = _mm512_maskz_loadu_epi16(second_there, row + a.head_dim + d);
      _mm512_storeu_si512(to, _mm512_permutex2var_epi16(first, take_low, second));
      _mm512_storeu_si512(to + kLanes, _mm512_permutex2var_epi16(first, take_high, second));
    }
  };
  constexpr __mmask32 kThere = 0xffffffff;
  for (int key = 0; key + 1 < end; key += 2) {
    if (key / kKeyGroup < a.num_next) {
      const auto* const next = key_row<Bf16>(a.next_keys, key, a.head_dim);
      for (int d = 0; d < 2 * a.head_dim; d += kPairColumns) __builtin_prefetch(next + d, 0, 2);
    }
    pack(key, kThere, kThere);
  }
  if (end % 2 != 0) pack(end - 1, kThere, 0);
  for (int pair = (end + 1) / 2; pair < padded_keys(end) / 2; ++pair)
    for (int d = 0; d < a.head_dim; d += kLanes)
      store(a.panel + d / kPairColumns * kPairPanel + pair * kPairColumns + d % kPairColumns,
            F32{});
}

/// Calls body(row, its last row) for every two tiles of rows.
template <class Body>
void for_tiles(const KeyBlockArgs& a, Body body) {
  for (int row = 0; row < a.rows; row += 2 * kAmxRows) {
    const int end = row + 2 * kAmxRows < a.rows ? row + 2 * kAmxRows : a.rows;
    body(row, end - 1);
  }
}
/// The scores of all rows that see keys of the panel, which begins with `key`, before they are
/// scaled.
void tile_scores(const KeyBlockArgs& a, int key) {
  const auto* const queries = static_cast<const Bf16*>(a.queries);
  for_tiles(a, [&](int row, int last) {
    if (num_visible(a, last) <= key) return;
    for (int first = 0; first < kPanelKeys; first += 2 * kAmxColumns)
      multiply_bf16_rows(a.rows - row, {a.scores + row * kKeyBlock + key + first, kKeyBlock * 4},
                         true, {queries + row * a.head_dim, a.head_dim * 2},
                         {a.panel + first, kPanelKeys * 4}, a.head_dim);
  });
}
/// out [rows, kPairColumns] = weights times a panel of V, for the dimensions from `d` on.
void multiply_values(const KeyBlockArgs& a, int d, const float* panel, float* out) {
  for_tiles(a, [&](int row, int last) {
    multiply_bf16_rows(a.rows - row, {out + row * a.head_dim + d, a.head_dim * 4}, true,
                       {weights_of<Bf16>(a, row), kKeyBlock * 4}, {panel, kPairColumns * 4},
                       padded_keys(num_visible(a, last)));
  });
}

}  // namespace
}  // namespace nanovllm::cpu::NANOVLLM_ISA
