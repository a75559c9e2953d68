// The attention kernels for one instruction set; attention.h says what they compute.
//
// Scores: a panel of K is transposed to [head_dim, keys], so that a vector holds one dimension of
// several keys and every score is one chain of multiply-adds over the dimensions, whatever the
// number of rows. Output: every element is one chain over the keys, or over pairs of them. A K or V
// element is loaded once for up to kRows rows.

#include "nanovllm/ops/cpu/kernels/attention.h"

#include "nanovllm/ops/cpu/kernels/attention_rows.h"
#include "nanovllm/ops/cpu/kernels/simd.h"
#if defined(__AMX_BF16__)
#include "nanovllm/ops/cpu/kernels/attention_amx.h"
#endif

namespace nanovllm::cpu::NANOVLLM_ISA {
namespace {

// kRows x kVectors sums, kVectors operands and a broadcast fill the registers (32 with AVX-512,
// else 16).
constexpr int kRows = 6;

inline F32 larger(F32 a, F32 b) { return a > b ? a : b; }

/// Calls f.operator()<number of rows>(first row) for groups of kRows rows, then for a smaller
/// group.
template <int kNumRows = kRows, class F>
inline void for_row_groups(int rows, F&& f, int row = 0) {
  for (; row + kNumRows <= rows; row += kNumRows) f.template operator()<kNumRows>(row);
  if constexpr (kNumRows > 1) for_row_groups<kNumRows - 1>(rows, f, row);
}

/// Loads the scales of `key` and of the keys that follow it in its group, up to kLanes.
inline F32 load_scales(const void* const* groups, int key, int head_dim) {
  const auto* const group = static_cast<const char*>(groups[key / kKeyGroup]);
  return load(reinterpret_cast<const float*>(group + kKeyGroup * head_dim) + key % kKeyGroup);
}

// -- scores

/// While keys are transposed, their values and the keys this far ahead are prefetched, because the
/// processor's own prefetch stops at each 4 KiB page.
constexpr int kPrefetchKeys = 2 * kLanes;

/// The scores of a model of dtype T, with float32 queries and keys of dtype K: a lane of the panel
/// holds one dimension of a key.
template <class T, class K = T>
struct FloatDot {
  using Model = T;
  using Key = K;
  using Query = float;
  static constexpr int kDims = 1;  // dimensions in a lane
  static F32 load_keys(const K* p) { return load(p); }
  static F32 load_query(const float* p) { return broadcast(*p); }
  static F32 multiply_add(F32 query, F32 keys, F32 sum) { return fma(query, keys, sum); }
};

#if defined(__AVX512BF16__)
/// The scores of bfloat16 queries and keys, two dimensions in a lane. Like those of FloatDot, the
/// products are exact and their sums float32.
struct Bf16Dot {
  using Model = Bf16;
  using Key = Bf16;
  using Query = Bf16;
  static constexpr int kDims = 2;
  static F32 load_keys(const Bf16* p) { return _mm512_loadu_ps(p); }
  static F32 load_query(const Bf16* p) {
    int32_t pair;
    __builtin_memcpy(&pair, p, sizeof pair);
    return reinterpret_cast<F32>(_mm512_set1_epi32(pair));
  }
  static F32 multiply_add(F32 query, F32 keys, F32 sum) {
    return _mm512_dpbf16_ps(sum, reinterpret_cast<__m512bh>(query),
                            reinterpret_cast<__m512bh>(keys));
  }
};
#else
using Bf16Dot = FloatDot<Bf16>;
#endif

/// Transposes keys [first, first + kPanelKeys) into the panel. Keys from `end` on may never have
/// been written: key end - 1 is read instead, and their scores are not used.
template <class Dot>
void pack_panel(const KeyBlockArgs& a, int first, int end) {
  using Key = typename Dot::Key;
  for (int v = 0; v < kVectors && first + v * kLanes < end; ++v) {
    const Key* rows[kLanes];
    for (int i = 0; i < kLanes; ++i) {
      const int key = first + v * kLanes + i;
      rows[i] = key_row<Key>(a.keys, key < end ? key : end - 1, a.head_dim);
    }
    const int key = first + v * kLanes, ahead = key + kPrefetchKeys;
    const auto* next_keys = key_row<Key>(a.keys, ahead < end ? ahead : end - 1, a.head_dim);
    const auto* values = key_row<Key>(a.values, key, a.head_dim);
    for (int d = 0; d < a.head_dim; d += Dot::kDims * kLanes) {
      constexpr int kElements = Dot::kDims * kLanes * kLanes;
      for (int i = 0; i < kElements; i += 64 / static_cast<int>(sizeof(Key))) {
        __builtin_prefetch(next_keys + i);
        __builtin_prefetch(values + i, 0, 2);
      }
      next_keys += kElements;
      values += kElements;
      F32 x[kLanes];
      for (int i = 0; i < kLanes; ++i) x[i] = Dot::load_keys(rows[i] + d);
      transpose(x);
      for (int i = 0; i < kLanes; ++i)
        store(a.panel + (d / Dot::kDims + i) * kPanelKeys + v * kLanes, x[i]);
    }
  }
}

/// The scores of kNumRows rows against the panel, before they are scaled.
template <class Dot, int kNumRows>
void panel_scores(const KeyBlockArgs& a, int row, float* scores) {
  const auto* q = static_cast<const typename Dot::Query*>(a.queries) + row * a.head_dim;
  F32 acc[kNumRows][kVectors] = {};
  for (int d = 0; d < a.head_dim; d += Dot::kDims) {
    F32 k[kVectors];
    for (int v = 0; v < kVectors; ++v)
      k[v] = load(a.panel + d / Dot::kDims * kPanelKeys + v * kLanes);
    for (int r = 0; r < kNumRows; ++r) {
      const F32 x = Dot::load_query(q + r * a.head_dim + d);
      for (int v = 0; v < kVectors; ++v) acc[r][v] = Dot::multiply_add(x, k[v], acc[r][v]);
    }
  }
  for (int r = 0; r < kNumRows; ++r)
    for (int v = 0; v < kVectors; ++v) store(scores + r * kKeyBlock + v * kLanes, acc[r][v]);
}

// -- softmax

/// Turns a row's scores into weights relative to the largest one; the lanes after the row's last
/// key become 0. With keys of e4m3 the scores are multiplied by the keys' scales, and the weights
/// by the values' scales. Weights of a smaller type than float use the first part of the scores'
/// memory.
template <class Key, class Weight>
void softmax_row(const KeyBlockArgs& a, int row, float* max_out, float* sum_out) {
  constexpr bool kHasScales = sizeof(Key) == 1;
  static_assert(kKeyGroup % kLanes == 0);
  float* const scores = a.scores + row * kKeyBlock;
  const int count = num_visible(a, row);
  const int padded = (count + kLanes - 1) / kLanes * kLanes;
  if constexpr (kHasScales)
    for (int j = 0; j < padded; j += kLanes)
      store(scores + j, load(scores + j) * load_scales(a.keys, j, a.head_dim));
  for (int j = count; j < padded; ++j) scores[j] = -__builtin_inff();
  F32 top = broadcast(-__builtin_inff());
  for (int j = 0; j < padded; j += kLanes) {
    const F32 x = load(scores + j) * a.scale;
    store(scores + j, x);
    top = larger(top, x);
  }
  float row_max = top[0];
  for (int i = 1; i < kLanes; ++i) row_max = row_max > top[i] ? row_max : top[i];
  auto* const weights = weights_of<Weight>(a, row);
  F32 total = {};
  for (int j = 0; j < padded; j += kLanes) {
    const F32 x = exp2_nonpositive(load(scores + j) - row_max);
    total = total + x;
    store(weights + j, kHasScales ? x * load_scales(a.values, j, a.head_dim) : x);
  }
  *max_out = row_max;
  *sum_out = sum(total);
}

// -- weighted sum of V

/// Multiplies the values of one key at a time by float32 weights.
template <class T>
struct SingleValues {
  using Value = T;
  using Weight = float;
  static constexpr int kKeys = 1;
  template <int kNumVectors>
  static void load_values(F32 (&x)[kNumVectors], const T* value, int, bool) {
    for (int v = 0; v < kNumVectors; ++v) x[v] = load(value + v * kLanes);
  }
  static F32 load_weights(const float* p) { return broadcast(*p); }
  static F32 multiply_add(F32 weights, F32 values, F32 sum) { return fma(weights, values, sum); }
};

#if defined(__AVX512BF16__)
/// Multiplies bfloat16 values of two keys in a lane by weights rounded to bfloat16, so that an
/// instruction multiplies twice as many. A single row does so too, so that no bit depends on the
/// number of rows.
struct PairedValues {
  using Value = Bf16;
  using Weight = Bf16;
  static constexpr int kKeys = 2;
  /// If there is no second key, zeros take the place of its values.
  template <int kNumVectors>
  static void load_values(F32 (&x)[kNumVectors], const Bf16* value, int head_dim, bool has_second) {
    static_assert(kNumVectors % 2 == 0);
    for (int v = 0; v < kNumVectors; v += 2, value += 2 * kLanes) {
      const __m512i first = _mm512_loadu_si512(value);
      const __m512i second =
          has_second ? _mm512_loadu_si512(value + head_dim) : _mm512_setzero_si512();
      x[v] = interleave<0>(first, second);
      x[v + 1] = interleave<kLanes>(first, second);
    }
  }
  static F32 load_weights(const Bf16* p) { return Bf16Dot::load_query(p); }
  static F32 multiply_add(F32 weights, F32 values, F32 sum) {
    return Bf16Dot::multiply_add(weights, values, sum);
  }

 private:
  /// Takes kLanes values from kFirst on, in turn from one key and from the other.
  template <int kFirst>
  static F32 interleave(__m512i first, __m512i second) {
    typedef uint16_t Indices __attribute__((vector_size(64)));
    Indices indices;
    for (int i = 0; i < 2 * kLanes; ++i)
      indices[i] = static_cast<uint16_t>(kFirst + i / 2 + i % 2 * 2 * kLanes);
    return reinterpret_cast<F32>(
        _mm512_permutex2var_epi16(first, reinterpret_cast<__m512i>(indices), second));
  }
};
#else
using PairedValues = SingleValues<Bf16>;
#endif

/// out [kNumRows, kNumVectors * kLanes] (+)= the weights of keys [first, end) times V, for the rows
/// from `row` on and the dimensions from `d` on. `first` is a multiple of Values::kKeys.
template <class Values, int kNumRows, int kNumVectors>
void accumulate_values(const KeyBlockArgs& a, int row, int d, int first, int end, int num_next,
                       float* out) {
  using T = typename Values::Value;
  const auto* const weights = weights_of<typename Values::Weight>(a, row);
  constexpr int kRowWeights = kKeyBlock * sizeof(float) / sizeof(*weights);
  F32 acc[kNumRows][kNumVectors];
  out += row * a.head_dim + d;
  for (int r = 0; r < kNumRows; ++r)
    for (int v = 0; v < kNumVectors; ++v)
      acc[r][v] = first == 0 ? F32{} : load(out + r * a.head_dim + v * kLanes);
  const auto add = [&](const T* value, int key, bool all_there) {
    F32 x[kNumVectors];
    Values::load_values(x, value, a.head_dim, all_there);
    for (int r = 0; r < kNumRows; ++r) {
      const F32 w = Values::load_weights(weights + r * kRowWeights + key);
      for (int v = 0; v < kNumVectors; ++v) acc[r][v] = Values::multiply_add(w, x[v], acc[r][v]);
    }
  };
  for (int j = first; j < end;) {
    const T* value = key_row<T>(a.values, j, a.head_dim) + d;
    const int group_end = (j / kKeyGroup + 1) * kKeyGroup;
    if (j / kKeyGroup < num_next) {
      const T* next = static_cast<const T*>(a.next_keys[j / kKeyGroup]) + d;
      for (int i = 0; i < kKeyGroup; ++i, next += a.head_dim)
        for (int line = 0; line < kNumVectors * kLanes; line += 64 / static_cast<int>(sizeof(T)))
          __builtin_prefetch(next + line, 0, 2);
    }
    const int stop = group_end < end ? group_end : end;
    for (; j + Values::kKeys <= stop; j += Values::kKeys, value += Values::kKeys * a.head_dim)
      add(value, j, true);
    if (j < stop) {
      add(value, j, false);
      break;
    }
  }
  for (int r = 0; r < kNumRows; ++r)
    for (int v = 0; v < kNumVectors; ++v) store(out + r * a.head_dim + v * kLanes, acc[r][v]);
}

/// Computes kNumVectors vectors of all rows. Rows of a tile see different numbers of keys: together
/// they take the keys that all see, then each row takes the rest of its keys.
template <class Values, int kNumVectors>
void weighted_values(const KeyBlockArgs& a, int d, float* out) {
  for_row_groups(a.rows, [&]<int kNumRows>(int row) {
    // A row's last key may have no partner, so it comes last.
    const int most = num_visible(a, row + kNumRows - 1), least = num_visible(a, row);
    const int common = least == most ? most : least / Values::kKeys * Values::kKeys;
    const int num_next = row == 0 ? a.num_next : 0;
    accumulate_values<Values, kNumRows, kNumVectors>(a, row, d, 0, common, num_next, out);
    for (int r = 0; r < kNumRows; ++r) {
      const int end = num_visible(a, row + r);
      if (end > common)
        accumulate_values<Values, 1, kNumVectors>(a, row + r, d, common, end, 0, out);
    }
  });
}

/// Computes the dimensions from `d` on, in steps of kNumVectors vectors and the rest in smaller
/// steps.
template <class Values, int kNumVectors = kVectors>
void weighted_values_of_all(const KeyBlockArgs& a, float* out, int d = 0) {
  for (; d + kNumVectors * kLanes <= a.head_dim; d += kNumVectors * kLanes)
    weighted_values<Values, kNumVectors>(a, d, out);
  if constexpr (kNumVectors > Values::kKeys)
    weighted_values_of_all<Values, kNumVectors / 2>(a, out, d);
}

template <class Dot, class Values>
void key_block(const KeyBlockArgs& a, const Partial& partial) {
  const int end = num_visible(a, a.rows - 1);
  for (int key = 0; key < end; key += kPanelKeys) {
    pack_panel<Dot>(a, key, end);
    for_row_groups(a.rows, [&]<int kNumRows>(int row) {
      if (num_visible(a, row + kNumRows - 1) > key)
        panel_scores<Dot, kNumRows>(a, row, a.scores + row * kKeyBlock + key);
    });
  }
  for (int row = 0; row < a.rows; ++row)
    softmax_row<typename Dot::Key, typename Values::Weight>(a, row, partial.max + row,
                                                            partial.sum + row);
  weighted_values_of_all<Values>(a, partial.out);
}

#if defined(__AMX_BF16__)
/// key_block() for bfloat16 with the tiles of AMX.
void tile_key_block(const KeyBlockArgs& a, const Partial& partial) {
  const TileRegisters registers;
  const int end = num_visible(a, a.rows - 1);
  for (int key = 0; key < end; key += kPanelKeys) {
    pack_panel<Bf16Dot>(a, key, end);
    tile_scores(a, key);
  }
  for (int row = 0; row < a.rows; ++row) {
    softmax_row<Bf16, Bf16>(a, row, partial.max + row, partial.sum + row);
    for (int key = (num_visible(a, row) + kLanes - 1) / kLanes * kLanes; key < padded_keys(end);
         key += kLanes)
      store(weights_of<Bf16>(a, row) + key, F32{});
  }
  pack_values(a, end);
  for (int d = 0; d < a.head_dim; d += kPairColumns)
    multiply_values(a, d, a.panel + d / kPairColumns * kPairPanel, partial.out);
}
#endif

// -- queries, merging, output

template <class Dot>
void load_queries(void* to, const void* from, int head_dim) {
  for (int d = 0; d < head_dim; d += kLanes)
    store(static_cast<typename Dot::Query*>(to) + d,
          load(static_cast<const typename Dot::Model*>(from) + d));
}

void merge(const Partial& total, const Partial& next, int rows, int head_dim) {
  for (int row = 0; row < rows; ++row) {
    const float top = total.max[row] >= next.max[row] ? total.max[row] : next.max[row];
    const F32 a = exp2_nonpositive(broadcast(total.max[row] - top));
    const F32 b = exp2_nonpositive(broadcast(next.max[row] - top));
    total.max[row] = top;
    total.sum[row] = fma(broadcast(next.sum[row]), b, broadcast(total.sum[row]) * a)[0];
    float* to = total.out + row * head_dim;
    const float* from = next.out + row * head_dim;
    for (int d = 0; d < head_dim; d += kLanes)
      store(to + d, fma(load(from + d), b, load(to + d) * a));
  }
}

template <class T>
void store_row(void* to, const float* from, float total, int head_dim) {
  for (int d = 0; d < head_dim; d += kLanes) store(static_cast<T*>(to) + d, load(from + d) / total);
}

template <class Dot, class Values = SingleValues<typename Dot::Key>>
constexpr AttentionKernels kKernels = {
    .head_dim_multiple = Dot::kDims* kLanes,
    .query_bytes = sizeof(typename Dot::Query),
    .load_queries = load_queries<Dot>,
    .key_block = key_block<Dot, Values>,
    .merge = merge,
    .store_row = store_row<typename Dot::Model>,
};

#if defined(__AMX_BF16__)
constexpr AttentionKernels kBf16Kernels = [] {
  AttentionKernels kernels = kKernels<Bf16Dot, PairedValues>;
  kernels.key_block = tile_key_block;
  return kernels;
}();
#else
constexpr AttentionKernels kBf16Kernels = kKernels<Bf16Dot, PairedValues>;
#endif

}  // namespace

extern const AttentionKernels kAttention[3] = {kKernels<FloatDot<float>>, kBf16Kernels,
                                               kKernels<FloatDot<F16>>};
extern const AttentionKernels kE4m3Attention[3] = {
    kKernels<FloatDot<float, E4m3>>, kKernels<FloatDot<Bf16, E4m3>>, kKernels<FloatDot<F16, E4m3>>};

}  // namespace nanovllm::cpu::NANOVLLM_ISA
