// GEMMs of integers for one instruction set; int_gemm.h has the layout and the contract.
//
// A lane holds four values of a column. VNNI multiplies them by four bytes of x and adds up in one
// instruction: once for the high bytes of a group of x, once for the low ones. Without VNNI two
// instructions multiply two values each, with 16 bits. A tile of out, R rows by V vectors, has
// integer sums over a group of x and float sums over a group of the weight: out +=
// scale * (sum of x_scale * integer sum - zero * sum of x). AMX computes the integer sums of 16
// rows and a panel at once; the rest is the same, so each output has the same bits.
#include "nanovllm/ops/cpu/kernels/int_gemm.h"

#include "nanovllm/ops/cpu/kernels/gemm_out.h"
#include "nanovllm/ops/cpu/kernels/quantize_row.h"
#include "nanovllm/ops/cpu/kernels/simd.h"
#if defined(__AMX_INT8__)
#include "nanovllm/ops/cpu/kernels/amx.h"
#endif

namespace nanovllm::cpu::NANOVLLM_ISA {
namespace {

/// The most rows R of a tile: 4 R sums, two vectors of w and one of x fit in 32 or 16 registers.
constexpr int kMaxRows = kLanes == 16 ? 6 : 3;
/// Values of k whose part of a panel stays in L1 under all rows of a task.
constexpr int64_t kBlockK = 512;

inline I32 broadcast_bits(const XValue* x) {
  int32_t bits;
  __builtin_memcpy(&bits, x, sizeof bits);
  return I32{} + bits;
}

inline F32 to_float(I32 v) { return __builtin_convertvector(v, F32); }

/// sum + the products of four values in each lane: unsigned ones of w, signed ones of x.
[[gnu::always_inline]] inline I32 multiply_add(I32 sum, U32 w, const XValue* x) {
#if defined(__AVX512VNNI__)
  return reinterpret_cast<I32>(_mm512_dpbusd_epi32(reinterpret_cast<__m512i>(sum),
                                                   reinterpret_cast<__m512i>(w),
                                                   reinterpret_cast<__m512i>(broadcast_bits(x))));
#elif defined(__AVXVNNI__)
  return reinterpret_cast<I32>(
      _mm256_dpbusd_avx_epi32(reinterpret_cast<__m256i>(sum), reinterpret_cast<__m256i>(w),
                              reinterpret_cast<__m256i>(broadcast_bits(x))));
#else
  const auto pairs = [](U32 a, I32 b) {
#if defined(__AVX512BW__)
    return reinterpret_cast<I32>(
        _mm512_madd_epi16(reinterpret_cast<__m512i>(a), reinterpret_cast<__m512i>(b)));
#elif defined(__AVX2__)
    return reinterpret_cast<I32>(
        _mm256_madd_epi16(reinterpret_cast<__m256i>(a), reinterpret_cast<__m256i>(b)));
#else
    return reinterpret_cast<I32>(
        _mm_madd_epi16(reinterpret_cast<__m128i>(a), reinterpret_cast<__m128i>(b)));
#endif
  };
  return sum + pairs(w & 0x00ff00ff, broadcast_bits(x)) +
         pairs(w >> 8 & 0x00ff00ff, broadcast_bits(x + 2));
#endif
}

/// A load of weights: kStep values of k, in kStep / 4 vectors of bytes.
struct Int8 {
  static constexpr int kStep = 4;
  template <int kPart>
  static U32 values(U32 w) {
    return w;
  }
};
struct Int4 {
  static constexpr int kStep = 8;
  template <int kPart>
  static U32 values(U32 w) {
    return w >> 4 * kPart & 0x0f0f0f0f;
  }
};
constexpr int64_t kStepBytes = kColumns * 4;

template <class W>
constexpr int64_t values_bytes(int64_t k) {
  return k / W::kStep * kStepBytes;
}

/// The operands of a tile: out [rows, columns] = or += x [rows, k] w for `k` values of k from
/// `begin` on. Rows of out are kGemmGroupColumns apart.
struct Tile {
  float* out;
  const char* x[kMaxRows];
  const char* panel;
  int64_t begin, k;
  // Weights that are read later and prefetched meanwhile (gemm.cpp says why), `next_step` bytes
  // further for each load. `far` goes into the L2 cache. `next` goes into L1 too, except with two
  // panels of int8, which are faster without (gemm_bench int8, one row from memory: 45 instead of
  // 40 GB/s on Zen 4; int4 47 instead of 50).
  const char* next;
  const char* far;
  int64_t next_step;
};

/// Adds the products of kIntGroup values of k, which begin w_at and x_at bytes behind w and x.
template <class W, int R, int V>
[[gnu::always_inline]] inline void multiply(I32 (&sums)[R][V], const char* const (&w)[V],
                                            const char* const (&x)[R], int64_t w_at, int64_t x_at) {
  constexpr int kParts = W::kStep / 4;
#pragma GCC unroll 8
  for (int step = 0; step < kIntGroup / W::kStep; ++step) {
    U32 columns[V];
#pragma GCC unroll 8
    for (int v = 0; v < V; ++v)
      __builtin_memcpy(&columns[v], w[v] + w_at + step * kStepBytes, sizeof columns[v]);
    const auto part = [&]<int kPart>() __attribute__((always_inline)) {
#pragma GCC unroll 6
      for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
        for (int v = 0; v < V; ++v)
          sums[r][v] = multiply_add(
              sums[r][v], W::template values<kPart>(columns[v]),
              reinterpret_cast<const XValue*>(x[r] + x_at) + (step * kParts + kPart) * 4);
    };
    part.template operator()<0>();
    if constexpr (kParts == 2) part.template operator()<1>();
  }
}

/// The scales and zero points of a panel's group of k.
struct GroupScales {
  F32 scale[2], zero[2];
  explicit GroupScales(const char* after_values) {
    for (int v = 0; v < 2; ++v) {
      scale[v] = load(reinterpret_cast<const float*>(after_values) + v * kLanes);
      U8 zeros;
      __builtin_memcpy(&zeros, after_values + kColumns * sizeof(float) + v * kLanes, sizeof zeros);
      zero[v] = __builtin_convertvector(zeros, F32);
    }
  }
  /// Adds a group's sums, of a row and half v of the panel's columns, to out.
  [[gnu::always_inline]] void add(float* row, int v, F32 sums, float x_sum, bool is_first) const {
    const F32 sum = sums - zero[v] * x_sum;
    float* const out = row + v * kLanes;
    store(out, is_first ? scale[v] * sum : fma(scale[v], sum, load(out)));
  }
};

/// Computes a tile of R rows and P panels.
template <class W, int R, int P>
void compute(const Tile& t, const GemmCall& call, int64_t padded_k) {
  constexpr int V = 2 * P;
  constexpr int64_t kBytes = values_bytes<W>(kIntGroup);
  const int64_t parts = call.x_group / kIntGroup;
  const char* next = t.next;
  const char* far = t.far;
  const int64_t end = t.begin + t.k;
  for (int64_t k = t.begin; k < end;) {
    const int64_t group = k / call.group, group_begin = group * call.group;
    const int64_t group_end =
        group_begin + call.group < padded_k ? group_begin + call.group : padded_k;
    const int64_t stop = group_end < end ? group_end : end;
    const char* const base = t.panel + group * call.group_bytes;
    const char* w[V];
#pragma GCC unroll 8
    for (int v = 0; v < V; ++v)
      w[v] = base + v / 2 * call.panel_bytes + v % 2 * (kStepBytes / 2) +
             values_bytes<W>(k - group_begin);
    const char* x[R];
    float x_sums[R] = {};
#pragma GCC unroll 6
    for (int r = 0; r < R; ++r) x[r] = t.x[r] + k * kXValueBytes;
    F32 sums[R][V] = {};
    for (int64_t i = k / call.x_group; i < stop / call.x_group; ++i) {
      I32 integers[R][V] = {};  // with VNNI, the sums of the high bytes
      [[maybe_unused]] I32 low[R][V] = {};
      for (int64_t part = 0; part < parts; ++part) {
#pragma GCC unroll 4
        for (int p = 0; p < P; ++p)
          for (int64_t line = 0; line < t.next_step; line += 64) {
            if constexpr (P * kBytes <= values_bytes<Int8>(kIntGroup))
              __builtin_prefetch(next + p * call.panel_bytes + line);
            __builtin_prefetch(far + p * call.panel_bytes + line, 0, 2);
          }
        next += t.next_step;
        far += t.next_step;
        const int64_t x_at = part * kIntGroup * (kVnni ? 1 : kXValueBytes);
        multiply<W>(integers, w, x, part * kBytes, x_at);
        if constexpr (kVnni) multiply<W>(low, w, x, part * kBytes, call.x_group + x_at);
      }
      if constexpr (kVnni) {
#pragma GCC unroll 6
        for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
          for (int v = 0; v < V; ++v) integers[r][v] = (integers[r][v] << 8) + low[r][v];
      }
#pragma GCC unroll 6
      for (int r = 0; r < R; ++r) {
        const auto* scales = reinterpret_cast<const float*>(t.x[r] + padded_k * kXValueBytes);
        const F32 scale = broadcast(scales[i]);
        x_sums[r] += scales[padded_k / call.x_group + i];
#pragma GCC unroll 8
        for (int v = 0; v < V; ++v) sums[r][v] = fma(to_float(integers[r][v]), scale, sums[r][v]);
        x[r] += call.x_group * kXValueBytes;
      }
#pragma GCC unroll 8
      for (int v = 0; v < V; ++v) w[v] += parts * kBytes;
    }
    const char* const after = base + values_bytes<W>(group_end - group_begin);
#pragma GCC unroll 4
    for (int p = 0; p < P; ++p) {
      const GroupScales of(after + p * call.panel_bytes);
#pragma GCC unroll 2
      for (int v = 0; v < 2; ++v)
#pragma GCC unroll 6
        for (int r = 0; r < R; ++r)
          of.add(t.out + r * kGemmGroupColumns + p * kColumns, v, sums[r][2 * p + v], x_sums[r],
                 k == 0);
    }
    k = stop;
  }
}

#if defined(__AMX_INT8__)
/// Rows from which AMX is faster.
constexpr int64_t kLeastAmxRows = 8;

/// Returns the values of a block of a panel as bytes; with four bits they are copied to `bytes`.
template <class W>
const char* as_bytes(char* bytes, const char* values, int64_t k) {
  if constexpr (W::kStep == 4) return values;
  for (int64_t step = 0; step < k / W::kStep; ++step)
    for (int64_t i = 0; i < kStepBytes; i += sizeof(U32)) {
      U32 both;
      __builtin_memcpy(&both, values + step * kStepBytes + i, sizeof both);
      const U32 parts[2] = {W::template values<0>(both), W::template values<1>(both)};
      for (int part = 0; part < 2; ++part)
        __builtin_memcpy(bytes + (2 * step + part) * kStepBytes + i, &parts[part], sizeof(U32));
    }
  asm volatile("" ::: "memory");  // the compiler does not know that tiles are loaded from memory
  return bytes;
}

/// compute() for one panel and up to 16 rows, the first one at t.x[0]. Always reads 16 rows.
template <class W>
void compute_amx(const AmxTiles& tiles, const Tile& t, const GemmCall& call, int64_t padded_k,
                 int rows) {
  const char* const x = t.x[0];
  AmxTiles::Products products[2];  // one is added while the other one is computed
  char bytes[kBlockK / Int8::kStep * kStepBytes];
  F32 sums[AmxTiles::kRows][2];
  float x_sums[AmxTiles::kRows];
  const int64_t end = t.begin + t.k;
  for (int64_t k = t.begin; k < end;) {
    const int64_t group = k / call.group, group_begin = group * call.group;
    const int64_t group_end =
        group_begin + call.group < padded_k ? group_begin + call.group : padded_k;
    const int64_t stop = group_end < end ? group_end : end;
    const char* const base = t.panel + group * call.group_bytes;
    const char* const w = as_bytes<W>(bytes, base + values_bytes<W>(k - group_begin), stop - k);
    for (int r = 0; r < rows; ++r) sums[r][0] = sums[r][1] = F32{}, x_sums[r] = 0;
    const int64_t first = k / call.x_group, last = stop / call.x_group;
    const auto multiply = [&](int64_t i) {
      tiles.multiply(products[i % 2], x + i * call.x_group * kXValueBytes, call.x_stride,
                     w + (i - first) * values_bytes<Int8>(call.x_group));
    };
    multiply(first);
    for (int64_t i = first; i < last; ++i) {
      if (i + 1 < last) multiply(i + 1);
      const AmxTiles::Products& now = products[i % 2];
      for (int r = 0; r < rows; ++r) {
        const auto* const scales =
            reinterpret_cast<const float*>(x + r * call.x_stride + padded_k * kXValueBytes);
        const F32 scale = broadcast(scales[i]);
        x_sums[r] += scales[padded_k / call.x_group + i];
        for (int v = 0; v < 2; ++v) {
          I32 high, low;
          __builtin_memcpy(&high, now.high[r] + v * kLanes, sizeof high);
          __builtin_memcpy(&low, now.low[r] + v * kLanes, sizeof low);
          sums[r][v] = fma(to_float((high << 8) + low), scale, sums[r][v]);
        }
      }
    }
    const GroupScales of(base + values_bytes<W>(group_end - group_begin));
    for (int r = 0; r < rows; ++r)
      for (int v = 0; v < 2; ++v)
        of.add(t.out + r * kGemmGroupColumns, v, sums[r][v], x_sums[r], k == 0);
    k = stop;
  }
}
#endif

constexpr int panels_at_once(int64_t rows) { return rows <= kMaxRows / 2 ? 2 : 1; }

/// Computes `rows` rows, at most R, of `panels` panels. next_of(p) is the address that is read
/// after p panels.
template <class W, int R, class NextOf>
void compute_panels(Tile t, const GemmCall& call, int64_t padded_k, int64_t rows, int64_t panels,
                    NextOf next_of) {
  if constexpr (R > 1) {
    if (rows < R) return compute_panels<W, R - 1>(t, call, padded_k, rows, panels, next_of);
  }
  constexpr int P = panels_at_once(R);
  for (int64_t p = 0; p < panels;) {
    const int count = p + P <= panels ? P : 1;
    t.next = next_of(p + count);
    t.far = next_of(p + kPrefetchPanels);
    if (count == P) compute<W, R, P>(t, call, padded_k);
    else compute<W, R, 1>(t, call, padded_k);
    p += count;
    t.panel += count * call.panel_bytes;
    t.out += count * kColumns;
  }
}

template <class W, class T>
void task(const GemmCall& call, int64_t row, int64_t row_end, int64_t panel, int64_t panel_end,
          float* sums) {
  const int64_t rows = row_end - row;
  const int64_t tiles = (rows + kMaxRows - 1) / kMaxRows;
  const int64_t padded_k = (call.k + kIntGroup - 1) / kIntGroup * kIntGroup;
  // The offset in a panel of its values from k on.
  const auto offset = [&](int64_t k) {
    return k / call.group * call.group_bytes + values_bytes<W>(k % call.group);
  };
  const int64_t blocks = (padded_k + kBlockK - 1) / kBlockK;
  // A whole number of cache lines for each tile.
  const int64_t next_step = (values_bytes<W>(kIntGroup) / 64 + tiles - 1) / tiles * 64;
#if defined(__AMX_INT8__)
  const bool uses_amx = rows >= kLeastAmxRows && call.rows == nullptr;
  const AmxTiles amx(uses_amx, static_cast<int>(call.x_group));
#endif
  // gemm.cpp says why the order of panels and of blocks of k depends on the number of tiles.
  const bool panel_by_panel = tiles == 1;
  const int64_t width = panel_by_panel ? panels_at_once(rows) : 1;
  for (int64_t first = panel; first < panel_end; first += kGroupPanels) {
    const int64_t panels = panel_end - first < kGroupPanels ? panel_end - first : kGroupPanels;
    const char* const base = static_cast<const char*>(call.panels) + first * call.panel_bytes;
    const auto address = [&](int64_t p, int64_t block) {
      return base + p * call.panel_bytes + offset(block * kBlockK);
    };
    // Computes all rows. Each tile prefetches its part of the next weights.
    const auto compute_block = [&](int64_t p, int64_t block) {
      const int64_t k = block * kBlockK, count = padded_k - k < kBlockK ? padded_k - k : kBlockK;
      const auto next_of = [&](int64_t ahead) {
        const int64_t i = panel_by_panel ? block + ahead / width : p + ahead;
        if (panel_by_panel) return address(p + i / blocks * width, i % blocks);
        if (i < panels) return address(i, block);
        return block + 1 < blocks ? address(i - panels, block + 1) : address(i, 0);
      };
#if defined(__AMX_INT8__)
      for (int64_t r = 0; uses_amx && r < rows; r += AmxTiles::kRows) {
        const Tile t = {.out = sums + r * kGemmGroupColumns + p * kColumns,
                        .x = {static_cast<const char*>(call.x) + (row + r) * call.x_stride},
                        .panel = base + p * call.panel_bytes,
                        .begin = k,
                        .k = count,
                        .next = nullptr,
                        .far = nullptr,
                        .next_step = 0};
        const int64_t left = rows - r;
        compute_amx<W>(amx, t, call, padded_k,
                       static_cast<int>(left < AmxTiles::kRows ? left : AmxTiles::kRows));
      }
      if (uses_amx) return;
#endif
      for (int64_t i = 0; i < tiles; ++i) {
        const int64_t r = rows * i / tiles, r_end = rows * (i + 1) / tiles;
        Tile t{.out = sums + r * kGemmGroupColumns + p * kColumns,
               .x = {},
               .panel = base + p * call.panel_bytes,
               .begin = k,
               .k = count,
               .next = nullptr,
               .far = nullptr,
               .next_step = next_step};
        const int64_t part = i * next_step * (count / kIntGroup);
        for (int64_t j = r; j < r_end; ++j)
          t.x[j - r] = static_cast<const char*>(call.x) +
                       (call.rows ? call.rows[row + j] : row + j) * call.x_stride;
        compute_panels<W, kMaxRows>(t, call, padded_k, r_end - r,
                                    panels - p < width ? panels - p : width,
                                    [&](int64_t ahead) { return next_of(ahead) + part; });
      }
    };
    if (panel_by_panel) {
      for (int64_t p = 0; p < panels; p += width)
        for (int64_t block = 0; block < blocks; ++block) compute_block(p, block);
    } else {
      for (int64_t block = 0; block < blocks; ++block)
        for (int64_t p = 0; p < panels; ++p) compute_block(p, block);
    }
    store_panels<T>(call, sums, row, rows, first, panels);
  }
}

template <class T>
constexpr IntGemmKernels kKernels = {{kColumns, kMaxRows, task<Int8, T>},
                                     {kColumns, kMaxRows, task<Int4, T>},
                                     kXValueBytes,
                                     quantize_row<T>};

}  // namespace

extern const IntGemmKernels kIntGemm[3] = {kKernels<float>, kKernels<Bf16>, kKernels<F16>};

}  // namespace nanovllm::cpu::NANOVLLM_ISA
