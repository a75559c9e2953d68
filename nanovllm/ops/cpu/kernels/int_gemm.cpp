// GEMMs of integers for one instruction set; int_gemm.h has the layout and the contract.
//
// A lane holds four values of a column. VNNI multiplies them by four bytes of x and adds up in one
// instruction: once for the high bytes of kIntGroup values of x, once for the low ones. Without
// VNNI two instructions multiply two values each, with 16 bits. A tile of out, R rows by V vectors,
// has integer sums over kIntGroup values of k and float sums over a group of the weight: out +=
// scale * (sum of x_scale * integer sum - zero * sum of x).
#include "nanovllm/ops/cpu/kernels/int_gemm.h"
#include "nanovllm/ops/cpu/kernels/simd.h"

namespace nanovllm::cpu::NANOVLLM_ISA {
namespace {

using I32 = int32_t __attribute__((vector_size(4 * kLanes)));
using I16 = int16_t __attribute__((vector_size(2 * kLanes)));
using U8 = uint8_t __attribute__((vector_size(kLanes)));

constexpr int kColumns = 2 * kLanes;
constexpr int kMaxRows = kLanes == 16 ? 6 : 3;  // 4 R sums, two of w, one of x: of 32 or 16
constexpr int64_t kGroupPanels = kGemmGroupColumns / kColumns;
/// Values of k whose part of a panel stays in L1 under all rows of a task.
constexpr int64_t kBlockK = 512;

/// x as kIntGroup values are multiplied. With VNNI, high bytes and then low bytes, both signed;
/// without it 16-bit values, of four in the order 0, 2, 1, 3.
#if defined(__AVX512VNNI__) || defined(__AVXVNNI__)
constexpr bool kVnni = true;
using XValue = int8_t;
#else
constexpr bool kVnni = false;
using XValue = int16_t;
#endif
constexpr int64_t kXValueBytes = 2;
/// The largest value whose high and low byte are both at most 127; kIntGroup of them times 255 fit
/// in 32 bits.
constexpr float kLargest = 127 * 257;

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
  // What is read later and prefetched meanwhile, as in gemm.cpp: `next_step` bytes further for each
  // load. `far` goes into the L2 cache. `next` goes into L1 too, unless that are the bytes of two
  // panels of int8, which are faster without (gemm_bench int8, one row from memory: 45 instead of
  // 40 GB/s on Zen 4; int4 47 instead of 50).
  const char* next;
  const char* far;
  int64_t next_step;
};

/// Sums over kIntGroup values of k.
template <class W, int R, int V>
[[gnu::always_inline]] inline void multiply(I32 (&sums)[R][V], const char* const (&w)[V],
                                            const char* const (&x)[R]) {
  constexpr int kParts = W::kStep / 4;
#pragma GCC unroll 8
  for (int step = 0; step < kIntGroup / W::kStep; ++step) {
    U32 columns[V];
#pragma GCC unroll 8
    for (int v = 0; v < V; ++v)
      __builtin_memcpy(&columns[v], w[v] + step * kStepBytes, sizeof columns[v]);
    const auto part = [&]<int kPart>() __attribute__((always_inline)) {
#pragma GCC unroll 6
      for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
        for (int v = 0; v < V; ++v)
          sums[r][v] =
              multiply_add(sums[r][v], W::template values<kPart>(columns[v]),
                           reinterpret_cast<const XValue*>(x[r]) + (step * kParts + kPart) * 4);
    };
    part.template operator()<0>();
    if constexpr (kParts == 2) part.template operator()<1>();
  }
}

/// R rows, P panels.
template <class W, int R, int P>
void compute(const Tile& t, const GemmCall& call, int64_t padded_k) {
  constexpr int V = 2 * P;
  constexpr int64_t kBytes = values_bytes<W>(kIntGroup);
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
    for (int64_t i = k / kIntGroup; i < stop / kIntGroup; ++i) {
#pragma GCC unroll 4
      for (int p = 0; p < P; ++p)
        for (int64_t line = 0; line < t.next_step; line += 64) {
          if constexpr (P * kBytes <= values_bytes<Int8>(kIntGroup))
            __builtin_prefetch(next + p * call.panel_bytes + line);
          __builtin_prefetch(far + p * call.panel_bytes + line, 0, 2);
        }
      next += t.next_step;
      far += t.next_step;
      I32 integers[R][V] = {};
      multiply<W>(integers, w, x);
      if constexpr (kVnni) {
#pragma GCC unroll 6
        for (int r = 0; r < R; ++r) {
          x[r] += kIntGroup;
#pragma GCC unroll 8
          for (int v = 0; v < V; ++v) integers[r][v] <<= 8;
        }
        multiply<W>(integers, w, x);
      }
#pragma GCC unroll 6
      for (int r = 0; r < R; ++r) {
        const auto* scales = reinterpret_cast<const float*>(t.x[r] + padded_k * kXValueBytes);
        const F32 scale = broadcast(scales[i]);
        x_sums[r] += scales[padded_k / kIntGroup + i];
#pragma GCC unroll 8
        for (int v = 0; v < V; ++v) sums[r][v] = fma(to_float(integers[r][v]), scale, sums[r][v]);
        x[r] += kVnni ? kIntGroup : kIntGroup * kXValueBytes;
      }
#pragma GCC unroll 8
      for (int v = 0; v < V; ++v) w[v] += kBytes;
    }
    const char* const after = base + values_bytes<W>(group_end - group_begin);
#pragma GCC unroll 8
    for (int v = 0; v < V; ++v) {
      const char* const panel_after = after + v / 2 * call.panel_bytes;
      const F32 scale = load(reinterpret_cast<const float*>(panel_after) + v % 2 * kLanes);
      U8 zeros;
      __builtin_memcpy(&zeros, panel_after + kColumns * sizeof(float) + v % 2 * kLanes,
                       sizeof zeros);
      const F32 zero = __builtin_convertvector(zeros, F32);
#pragma GCC unroll 6
      for (int r = 0; r < R; ++r) {
        float* const out = t.out + r * kGemmGroupColumns + v * kLanes;
        const F32 sum = sums[r][v] - zero * x_sums[r];
        store(out, k == 0 ? scale * sum : fma(scale, sum, load(out)));
      }
    }
    k = stop;
  }
}

constexpr int panels_at_once(int64_t rows) { return rows <= kMaxRows / 2 ? 2 : 1; }

/// `rows` rows, at most R, of `panels` panels; next_of(p) is what is read after p panels.
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

template <class Out>
void store_out(Out* out, int64_t out_stride, const float* sums, const float* bias, int64_t rows,
               int64_t columns) {
  for (int64_t r = 0; r < rows; ++r)
    for_each_vector(columns, [&](int64_t i, auto ld, auto st) {
      const F32 v = ld(sums + r * kGemmGroupColumns + i);
      st(out + r * out_stride + i, bias ? v + ld(bias + i) : v);
    });
}

template <class W, class T>
void task(const GemmCall& call, int64_t row, int64_t row_end, int64_t panel, int64_t panel_end,
          float* sums) {
  const int64_t rows = row_end - row;
  const int64_t tiles = (rows + kMaxRows - 1) / kMaxRows;
  const int64_t padded_k = (call.k + kIntGroup - 1) / kIntGroup * kIntGroup;
  // Where the values of k begin in a panel.
  const auto offset = [&](int64_t k) {
    return k / call.group * call.group_bytes + values_bytes<W>(k % call.group);
  };
  const int64_t blocks = (padded_k + kBlockK - 1) / kBlockK;
  // A whole number of cache lines for each tile.
  const int64_t next_step = (values_bytes<W>(kIntGroup) / 64 + tiles - 1) / tiles * 64;
  // The order of panels and of blocks of k is that of gemm.cpp.
  const bool panel_by_panel = tiles == 1;
  const int64_t width = panel_by_panel ? panels_at_once(rows) : 1;
  for (int64_t first = panel; first < panel_end; first += kGroupPanels) {
    const int64_t panels = panel_end - first < kGroupPanels ? panel_end - first : kGroupPanels;
    const char* const base = static_cast<const char*>(call.panels) + first * call.panel_bytes;
    const auto address = [&](int64_t p, int64_t block) {
      return base + p * call.panel_bytes + offset(block * kBlockK);
    };
    // All rows, of which each tile prefetches its part of the weights.
    const auto compute_block = [&](int64_t p, int64_t block) {
      const int64_t k = block * kBlockK, count = padded_k - k < kBlockK ? padded_k - k : kBlockK;
      const auto next_of = [&](int64_t ahead) {
        const int64_t i = panel_by_panel ? block + ahead / width : p + ahead;
        if (panel_by_panel) return address(p + i / blocks * width, i % blocks);
        if (i < panels) return address(i, block);
        return block + 1 < blocks ? address(i - panels, block + 1) : address(i, 0);
      };
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
    const int64_t column = first * kColumns;
    const int64_t columns =
        call.n - column < panels * kColumns ? call.n - column : panels * kColumns;
    const float* bias = call.bias ? call.bias + column : nullptr;
    const int64_t at = row * call.out_stride + column;
    if (call.out_f32)
      store_out(static_cast<float*>(call.out) + at, call.out_stride, sums, bias, rows, columns);
    else store_out(static_cast<T*>(call.out) + at, call.out_stride, sums, bias, rows, columns);
  }
}

template <class T>
void quantize_row(void* row, const void* x, const int32_t* order, int64_t k) {
  constexpr int kVectors = kIntGroup / kLanes;
  const int64_t groups = (k + kIntGroup - 1) / kIntGroup;
  auto* values = static_cast<XValue*>(row);
  auto* scales =
      reinterpret_cast<float*>(static_cast<char*>(row) + groups * kIntGroup * kXValueBytes);
  const T* from = static_cast<const T*>(x);
  for (int64_t g = 0; g < groups; ++g, values += kIntGroup * (kVnni ? 2 : 1)) {
    const int64_t first = g * kIntGroup, count = k - first < kIntGroup ? k - first : kIntGroup;
    const T* elements = from + first;
    T gathered[kIntGroup] = {};
    if (order != nullptr || count < kIntGroup) {
      for (int64_t i = 0; i < count; ++i)
        gathered[i] = from[order != nullptr ? order[first + i] : first + i];
      elements = gathered;
    }
    // As integers, NaN is larger than infinity and that is larger than all numbers.
    F32 v[kVectors];
    I32 most = {};
#pragma GCC unroll 8
    for (int i = 0; i < kVectors; ++i) {
      v[i] = load(elements + i * kLanes);
      const I32 size = reinterpret_cast<I32>(v[i]) & 0x7fffffff;
      most = size > most ? size : most;
    }
    int32_t largest = 0;
    for (int i = 0; i < kLanes; ++i) largest = most[i] > largest ? most[i] : largest;
    float size;
    __builtin_memcpy(&size, &largest, sizeof size);
    // A group so small counts as zeros, since the inverse could be infinite.
    const float inverse = size < 1e-30f ? 0 : kLargest / size;
    const float scale = size < 1e-30f ? 0 : size / kLargest;
    U32 total = {};  // if x is not finite it wraps around
    int16_t rounded[kIntGroup];
#pragma GCC unroll 8
    for (int i = 0; i < kVectors; ++i) {
      // Adding 1.5 * 2^23 rounds to an integer, in the low bits.
      const I32 value =
          reinterpret_cast<I32>(fma(v[i], broadcast(inverse), broadcast(12582912.0f))) - 0x4b400000;
      total += reinterpret_cast<U32>(value);
      const I16 narrow = __builtin_convertvector(value, I16);
      __builtin_memcpy(rounded + i * kLanes, &narrow, sizeof narrow);
    }
    uint32_t sum = 0;
    for (int i = 0; i < kLanes; ++i) sum += total[i];
    if constexpr (kVnni) {
      for (int i = 0; i < kIntGroup; ++i) {
        values[i] = static_cast<XValue>((rounded[i] + 128) >> 8);
        values[kIntGroup + i] = static_cast<XValue>(rounded[i]);
      }
    } else {
      for (int i = 0; i < kIntGroup; i += 4) {
        values[i] = static_cast<XValue>(rounded[i]);
        values[i + 1] = static_cast<XValue>(rounded[i + 2]);
        values[i + 2] = static_cast<XValue>(rounded[i + 1]);
        values[i + 3] = static_cast<XValue>(rounded[i + 3]);
      }
    }
    scales[g] = scale;
    scales[groups + g] = scale * static_cast<float>(static_cast<int32_t>(sum));
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
