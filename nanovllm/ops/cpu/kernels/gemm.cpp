// GEMMs on packed weights for one instruction set; gemm.h has the layout and the contract.
//
// The inner kernel keeps a tile of out in registers, R rows by two vectors, and runs through a
// block of k: two loads of w, R broadcasts of x, 2 R multiply-adds. Every element of out is summed
// in one order whatever the tile: chains over kGemmBlockK values of k, then the chains' sums. Few
// rows take several panels at once, since a chain's next multiply-add must wait for the last one's
// result (4 cycles) and two can start in each.
//
// A task goes through its columns in groups: a block of x, then each panel's block of k (in L1)
// under all rows of the task.
#include "nanovllm/ops/cpu/kernels/gemm.h"
#include "nanovllm/ops/cpu/kernels/gemm_out.h"
#include "nanovllm/ops/cpu/kernels/simd.h"

namespace nanovllm::cpu::NANOVLLM_ISA {

/// The kernel of amx_gemm.cpp, which exists only with AMX.
void amx_task(const GemmCall& call, int64_t row, int64_t row_end, int64_t panel, int64_t panel_end,
              float* scratch);

namespace {

/// The most rows R of a tile: 2 R accumulators, two vectors of w and one of x fit in the registers,
/// of which there are 32 with AVX-512, else 16.
constexpr int kMaxRows = kLanes == 16 ? 12 : 6;

/// How weights of one dtype are multiplied. A lane holds kStep elements of a column, which takes
/// kPasses multiply-adds.
template <class T>
struct Format {
  using Element = T;
  using Input = float;  // the dtype of a block of x
  static constexpr int kStep = 1, kPasses = 1;
  static F32 load_columns(const T* w) { return load(w); }
  static F32 load_row(const float* x) { return broadcast(*x); }
  /// The values of pass kPass.
  template <int kPass>
  static F32 values(F32 columns) {
    return columns;
  }
  template <int kPass>
  static F32 multiply_add(F32 sum, F32 row, F32 columns) {
    return fma(row, columns, sum);
  }
};

/// A lane holds two elements, the first one in its low half.
template <>
struct Format<Bf16> {
  using Element = Bf16;
  static constexpr int kStep = 2;
  static U32 load_columns(const Bf16* w) {
    U32 pairs;
    __builtin_memcpy(&pairs, w, sizeof pairs);
    return pairs;
  }
#if defined(__AVX512BF16__)
  using Input = Bf16;
  static constexpr int kPasses = 1;
  static U32 load_row(const Bf16* x) {
    uint32_t pair;
    __builtin_memcpy(&pair, x, sizeof pair);
    return U32{} + pair;
  }
  template <int kPass>
  static F32 multiply_add(F32 sum, U32 row, U32 columns) {
    return _mm512_dpbf16_ps(sum, (__m512bh)columns, (__m512bh)row);
  }
#else
  using Input = float;
  static constexpr int kPasses = 2;
  static F32 load_row(const float* x) { return broadcast(*x); }
  template <int kPass>
  static F32 values(U32 columns) {
    return reinterpret_cast<F32>(kPass == 0 ? columns << 16 : columns & 0xffff0000);
  }
  template <int kPass>
  static F32 multiply_add(F32 sum, F32 row, U32 columns) {
    return fma(row, values<kPass>(columns), sum);
  }
#endif
};

struct E4M3 {
  uint8_t bits;
};

/// The values are kE4M3Unit times too small: the bits of E4M3 become those of a float16, whose
/// exponent has one bit more.
template <>
struct Format<E4M3> : Format<float> {
  using Element = E4M3;
  static F32 load_columns(const E4M3* w) {
    // Extended to 16 bits, the sign is in all bits above the exponent.
#if defined(__AVX512F__)
    const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(w));
    const U16 bits = reinterpret_cast<U16>(_mm256_cvtepi8_epi16(bytes));
#elif defined(__AVX2__)
    const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(w));
    const U16 bits = reinterpret_cast<U16>(_mm_cvtepi8_epi16(bytes));
#else
    U16 bits;
    for (int i = 0; i < kLanes; ++i)
      bits[i] = static_cast<uint16_t>(static_cast<int8_t>(w[i].bits));
#endif
    return from_half(bits << 7 & 0xbfff);
  }
};

/// One multiply-add of each accumulator of a tile: acc [R][V] += x [R] columns [V].
template <class W, int kPass, int R, int V, class Columns>
[[gnu::always_inline]] inline void multiply_add(F32 (&acc)[R][V], const typename W::Input* x,
                                                const Columns (&columns)[V]) {
#pragma GCC unroll 12
  for (int r = 0; r < R; ++r) {
    const auto row = W::load_row(x + r * kGemmBlockK + kPass);
#pragma GCC unroll 8
    for (int v = 0; v < V; ++v)
      acc[r][v] = W::template multiply_add<kPass>(acc[r][v], row, columns[v]);
  }
}

/// kStep steps of k for a tile: acc [R][V] += x [R] w [V].
template <class W, int R, int V>
[[gnu::always_inline]] inline void step(F32 (&acc)[R][V], const typename W::Input* x,
                                        const typename W::Element* const (&w)[V]) {
  decltype(W::load_columns(w[0])) columns[V];
#pragma GCC unroll 8
  for (int v = 0; v < V; ++v) columns[v] = W::load_columns(w[v]);
  multiply_add<W, 0>(acc, x, columns);
  if constexpr (W::kPasses == 2) multiply_add<W, 1>(acc, x, columns);
}

/// A tile's operands: out [rows, columns] = or += x [rows, k] w. Rows of out are kGemmGroupColumns
/// apart and rows of x kGemmBlockK.
template <class W>
struct Tile {
  float* out;
  bool first;  // the first block of k: out has no sums yet
  const typename W::Input* x;
  const typename W::Element* w;  // the values of the first panel
  int64_t panel_stride;          // elements
  int64_t k;
  const char* scales;    // the scales of the first panel's columns, float32; null: 1
  int64_t scale_stride;  // bytes from panel to panel
  // Weights that are read later and prefetched meanwhile, `next_step` bytes further for each kStep
  // of k: the processor's own prefetch stops at each 4 KiB page and reaches half of the memory's
  // speed from two rows on. `far` is kPrefetchPanels panels ahead and goes into the L2 cache, since
  // L1 cannot wait for as many lines as arrive in the memory's latency. If one panel is computed at
  // a time, the next one also goes into L1, where four have no room.
  const char* next;
  const char* far;
  int64_t next_step;
};

template <class W>
constexpr int64_t kStepBytes = kColumns* W::kStep * sizeof(typename W::Element);

/// Computes a tile of R rows and P panels.
template <int R, int P, class W>
void compute(const Tile<W>& t) {
  constexpr int V = 2 * P;
  constexpr int64_t kStepElements = kColumns * W::kStep;
  F32 acc[R][V] = {};
  const char* next = t.next;
  const char* far = t.far;
  const int64_t panel_bytes = t.panel_stride * static_cast<int64_t>(sizeof(*t.w));
  for (int64_t i = 0; i < t.k; i += W::kStep, next += t.next_step, far += t.next_step) {
    const typename W::Element* columns[V];
#pragma GCC unroll 4
    for (int p = 0; p < P; ++p) {
      columns[2 * p] = t.w + p * t.panel_stride + i * kColumns;
      columns[2 * p + 1] = columns[2 * p] + kStepElements / 2;
#pragma GCC unroll 2
      for (int64_t line = 0; line < kStepBytes<W>; line += 64) {
        if constexpr (P == 1) __builtin_prefetch(next + line);
        __builtin_prefetch(far + p * panel_bytes + line, 0, 2);
      }
    }
    step<W>(acc, t.x + i, columns);
  }
#pragma GCC unroll 8
  for (int v = 0; v < V; ++v) {
    const auto* scales = reinterpret_cast<const float*>(t.scales + v / 2 * t.scale_stride);
    const F32 scale = t.scales ? load(scales + v % 2 * kLanes) : broadcast(1);
#pragma GCC unroll 12
    for (int r = 0; r < R; ++r) {
      float* out = t.out + r * kGemmGroupColumns + v * kLanes;
      store(out, t.first ? acc[r][v] * scale : fma(acc[r][v], scale, load(out)));
    }
  }
}

constexpr int panels_at_once(int64_t rows) { return rows == 1 ? 4 : rows <= kMaxRows / 4 ? 2 : 1; }

/// Computes `rows` rows, at most R, of `panels` panels. next_of(p) is the address that is read
/// after p panels.
template <int R, class W, class NextOf>
void compute_panels(Tile<W> t, int64_t rows, int64_t panels, NextOf next_of) {
  if constexpr (R > 1) {
    if (rows < R) return compute_panels<R - 1>(t, rows, panels, next_of);
  }
  constexpr int P = panels_at_once(R);
  const auto go_on = [&](int64_t count) {
    t.w += count * t.panel_stride;
    t.out += count * kColumns;
    t.scales += count * t.scale_stride;
  };
  int64_t p = 0;
  for (; p + P <= panels; p += P, go_on(P)) {
    t.next = next_of(p + P);
    t.far = next_of(p + kPrefetchPanels);
    compute<R, P>(t);
  }
  for (; p < panels; ++p, go_on(1)) {
    t.next = next_of(p + 1);
    t.far = next_of(p + kPrefetchPanels);
    compute<R, 1>(t);
  }
}

/// block [rows, k] (rows kGemmBlockK apart) = rows of x from `row` on, k columns from `column` on,
/// and zeros up to a multiple of W::kStep.
template <class W, class T>
void load_block(typename W::Input* block, const GemmCall& call, int64_t row, int64_t rows,
                int64_t column, int64_t k) {
  const auto* x = static_cast<const T*>(call.x) + column;
  for (int64_t r = 0; r < rows; ++r) {
    auto* to = block + r * kGemmBlockK;
    const auto* from = x + (call.rows ? call.rows[row + r] : row + r) * call.x_stride;
    if constexpr (sizeof(*to) == sizeof(*from))
      __builtin_memcpy(to, from, static_cast<size_t>(k) * sizeof(*to));
    else convert(to, from, k);
    if (k % W::kStep != 0) to[k] = {};
  }
}

/// Converts a block of a panel to float32: block [k, kColumns] = the values at w.
template <class W>
void unpack_block(float* block, const typename W::Element* w, int64_t k) {
  for (int64_t i = 0; i < k; i += W::kStep)
    for (int v = 0; v < 2; ++v, w += kLanes * W::kStep) {
      const auto columns = W::load_columns(w);
      float* const to = block + i * kColumns + v * kLanes;
      store(to, W::template values<0>(columns));
      if constexpr (W::kPasses == 2) store(to + kColumns, W::template values<1>(columns));
    }
}

/// A part of k that is summed in one chain.
template <class W>
struct Chain {
  int64_t begin, k;
  const typename W::Input* x;         // the block of x
  const typename W::Element* w;       // values in the first panel of a group of columns
  const typename W::Element* scales;  // scales in that panel; null: 1
};

/// The chain that follows another one in the panel at `panel`.
template <class W>
Chain<W> next_chain(const Chain<W>& last, const GemmCall& call, const typename W::Element* panel) {
  constexpr bool kQuantized = sizeof(typename W::Element) == 1;
  constexpr int64_t kBlockK = kQuantized ? kQuantizedBlockK : kGemmBlockK;
  Chain<W> next{
      .begin = last.begin + last.k, .k = 0, .x = nullptr, .w = nullptr, .scales = nullptr};
  const int64_t left = call.k - next.begin;
  next.k = left < kBlockK ? left : kBlockK;
  if constexpr (kQuantized) {
    const int64_t group = next.begin / call.group, in_group = next.begin % call.group;
    const int64_t count = call.k - group * call.group;
    const int64_t end = count < call.group ? count : call.group;  // values in the group
    if (end - in_group < next.k) next.k = end - in_group;
    const typename W::Element* const values = panel + group * call.group_bytes;
    next.w = values + in_group * kColumns;
    next.scales = values + end * kColumns;
  } else {
    next.w = panel + next.begin * kColumns;
  }
  return next;
}

/// GemmKernel::task. T is the dtype of x and of out.
template <class W, class T>
void task(const GemmCall& call, int64_t row, int64_t row_end, int64_t panel, int64_t panel_end,
          float* scratch) {
  using Element = typename W::Element;
  using Input = typename W::Input;
  constexpr bool kQuantized = sizeof(Element) == 1;
  constexpr bool kUnpacks = sizeof(Input) != sizeof(Element);
  // Unpacking a block pays from this many tiles on, because fewer conversions then save more than
  // the block's stores and loads cost. A conversion of E4M3 takes several instructions, one of
  // bfloat16 a single one.
  constexpr int64_t kMinUnpackTiles = kQuantized ? 2 : 6;
  const int64_t rows = row_end - row;
  const int64_t tiles = (rows + kMaxRows - 1) / kMaxRows;
  const int64_t tile_rows = (rows + tiles - 1) / tiles;
  const int64_t panel_stride = call.panel_bytes / static_cast<int64_t>(sizeof(Element));
  Input* block = reinterpret_cast<Input*>(scratch);
  float* sums = scratch + kGemmTaskRows * kGemmBlockK;
  float* unpacked = sums + kGemmTaskRows * kGemmGroupColumns;
  // If there is one tile of rows, it takes all chains of the panels that it computes at once, then
  // the next panels. That is the order of the memory, which delivers a tenth more so. With more
  // tiles, all panels take the first chain, then the next one, so that the chain's block of x stays
  // in L1.
  const bool panel_by_panel = tiles == 1;
  const int64_t width = panel_by_panel ? panels_at_once(rows) : 1;
  constexpr int kMostChains = kGemmTaskRows / kMaxRows;
  Chain<W> chains[kMostChains];

  for (int64_t group = panel; group < panel_end; group += kGroupPanels) {
    const int64_t panels = panel_end - group < kGroupPanels ? panel_end - group : kGroupPanels;
    const Element* group_w = static_cast<const Element*>(call.panels) + group * panel_stride;
    Chain<W> last{};
    while (last.begin + last.k < call.k) {
      int num_chains = 0;
      do {
        Chain<W>& chain = chains[num_chains];
        Input* const x = block + num_chains * rows * kGemmBlockK;
        last = chain = next_chain(last, call, group_w);
        chain.x = x;
        load_block<W, T>(x, call, row, rows, chain.begin, chain.k);
        ++num_chains;
      } while (panel_by_panel && num_chains < kMostChains && last.begin + last.k < call.k);

      const Element* const after = last.begin + last.k < call.k ? next_chain(last, call, group_w).w
                                                                : group_w + panels * panel_stride;
      for (int64_t p = 0; p < panels; p += width)
        for (int c = 0; c < num_chains; ++c) {
          const Chain<W>& chain = chains[c];
          const Element* const w = chain.w + p * panel_stride;
          Tile<W> tile{.out = sums + p * kColumns,
                       .first = chain.begin == 0,
                       .x = chain.x,
                       .w = w,
                       .panel_stride = panel_stride,
                       .k = chain.k,
                       .scales = chain.scales ? reinterpret_cast<const char*>(chain.scales +
                                                                              p * panel_stride)
                                              : nullptr,
                       .scale_stride = kQuantized ? call.panel_bytes : 0,
                       .next = nullptr,
                       .far = nullptr,
                       .next_step = kStepBytes<W> / tiles};
          const auto next_of = [&](int64_t ahead) {
            if (panel_by_panel) {
              const int64_t i = c + ahead / width;
              return reinterpret_cast<const char*>(chains[i % num_chains].w +
                                                   (p + i / num_chains * width) * panel_stride);
            }
            const int64_t at = p + ahead;
            return reinterpret_cast<const char*>(
                at < panels ? chain.w + at * panel_stride : after + (at - panels) * panel_stride);
          };
          if (tiles == 1) {
            compute_panels<kMaxRows>(tile, rows, panels - p < width ? panels - p : width, next_of);
            continue;
          }
          // Computes all tiles of panel p. Each prefetches its part of the next weights.
          const auto compute_tiles = [&](auto t) {
            for (int64_t r = 0; r < rows; r += tile_rows) {
              const int64_t part = r / tile_rows * chain.k / W::kStep * t.next_step;
              compute_panels<kMaxRows>(t, rows - r < tile_rows ? rows - r : tile_rows, 1,
                                       [&](int64_t ahead) { return next_of(ahead) + part; });
              t.out += tile_rows * kGemmGroupColumns;
              t.x += tile_rows * kGemmBlockK;
            }
          };
          if constexpr (kUnpacks) {
            if (tiles >= kMinUnpackTiles) {
              unpack_block<W>(unpacked, w, chain.k);
              compute_tiles(Tile<Format<float>>{.out = tile.out,
                                                .first = tile.first,
                                                .x = tile.x,
                                                .w = unpacked,
                                                .panel_stride = 0,
                                                .k = chain.k,
                                                .scales = tile.scales,
                                                .scale_stride = 0,
                                                .next = nullptr,
                                                .far = nullptr,
                                                .next_step = tile.next_step / W::kStep});
              continue;
            }
          }
          compute_tiles(tile);
        }
    }
    store_panels<T>(call, sums, row, rows, group, panels);
  }
}

/// GemmKernels::pack. A buffer in L1 holds kBlock values of each row while rows become columns.
template <class W>
void pack(void* panel, const void* rows, int64_t k) {
  using Element = typename W::Element;
  constexpr int64_t kBlock = 128;
  Element block[kColumns][kBlock];
  Element* to = static_cast<Element*>(panel);
  const int64_t padded_k = W::kStep == 1 ? k : (k + 31) / 32 * 32;
  for (int64_t i = 0; i < padded_k; i += kBlock) {
    const int64_t count = k - i < kBlock ? k - i : kBlock;
    if (count < kBlock) __builtin_memset(block, 0, sizeof block);
    for (int c = 0; c < kColumns; ++c)
      __builtin_memcpy(block[c], static_cast<const Element*>(rows) + c * k + i,
                       static_cast<size_t>(count) * sizeof(Element));
    const int64_t end = padded_k - i < kBlock ? padded_k - i : kBlock;
    for (int64_t j = 0; j < end; j += W::kStep)
      for (int c = 0; c < kColumns; ++c, to += W::kStep)
        __builtin_memcpy(to, &block[c][j], W::kStep * sizeof(Element));
  }
}

template <class W>
void unpack_row(void* row, const void* panel, int64_t column, int64_t k) {
  using Element = typename W::Element;
  Element* to = static_cast<Element*>(row);
  const Element* from = static_cast<const Element*>(panel) + column * W::kStep;
  int64_t i = 0;
  for (; i + W::kStep <= k; i += W::kStep, from += kColumns * W::kStep)
    __builtin_memcpy(to + i, from, W::kStep * sizeof(Element));
  if (i < k) to[i] = *from;
}

template <class T, class W = Format<T>>
constexpr GemmKernels kernels() {
  GemmKernels all = {{kColumns, kMaxRows, task<W, T>},
                     {},
                     {kColumns, kMaxRows, task<Format<E4M3>, T>},
                     pack<W>,
                     unpack_row<W>};
#if defined(__AMX_BF16__)
  if constexpr (__is_same(T, Bf16)) all.many_rows = {kColumns, 32, amx_task};  // two tiles of rows
#endif
  return all;
}

}  // namespace

extern const GemmKernels kGemm[3] = {kernels<float>(), kernels<Bf16>(), kernels<F16>()};

}  // namespace nanovllm::cpu::NANOVLLM_ISA
