#pragma once

#include <algorithm>
#include <type_traits>

#include "nanovllm/ops/cuda/device/device.cuh"
#include "nanovllm/ops/cuda/device/tensor_map.cuh"
#include "nanovllm/ops/cuda/device/wgmma.cuh"
#include "nanovllm/ops/cuda/elementwise/row_ops.cuh"
#include "nanovllm/ops/cuda/gemm/hopper/tile_gemm.h"
#include "nanovllm/ops/cuda/gemm/quantized/hopper/raw_stage.cuh"

// The tiles of tile_gemm.cu: their layout in shared memory, and the epilogues. tile_loop.cuh has
// the main loop.
namespace nanovllm::cuda {
using namespace hopper;

constexpr int kChunk = kBoxColumns;        // columns of k in a stage
constexpr int kChunkBytes = kBoxRowBytes;  // bytes of a row in a stage
/// This many bytes of x (a group of token tiles) are multiplied by all of w before the next ones,
/// so that they stay in the L2 cache.
constexpr int64_t kGroupBytes = 16 << 20;

struct TileParams {
  CUtensorMap w, x;  // boxes of kBoxRows and kHalfTokens rows
  GemmArgs args;
  int group;       // how many token tiles have kGroupBytes of x
  int split_bits;  // log2 of the split
  TileScratch scratch;
  TokenGroups groups;      // the tiles of a grouped GEMM
  DeferredNorm norm = {};  // if it has squares, this GEMM finishes it
};
struct QuantizedTileParams : TileParams {
  RawWeight raw;  // instead of w
};
struct E4M3TileParams : TileParams {
  CUtensorMap x_scales;   // boxes of kHalfTokens in a row
  const float* w_scales;  // [num_blocks, w_scale_stride], each for 128 rows and 128 columns
  int w_scale_stride, num_blocks;
};
/// Stands for the format of w if both x and w are E4M3 (e4m3_multiply.cuh).
struct E4M3ByE4M3 : PlainFormat<__nv_fp8_e4m3> {};

/// A tile of kTokens tokens by kRows rows of w; with SwiGLU half of the rows are gates. The
/// consumer warpgroups divide the tokens, or the rows of w if there are only 64 tokens, which is
/// the M of one wgmma. There are two consumer warpgroups, or three for 192 tokens, and one more
/// warpgroup of which one thread copies x and another one w.
///
/// If w is quantized and x is not, w is copied into a ring of raw stages (raw_stage.cuh). One more
/// warpgroup, the dequantizer, converts them into the stages that the consumers read.
template <int kTokens_, int kRows_, bool kSwiglu_, class Format_ = PlainFormat<Bf16>>
struct Tile {
  using Format = Format_;  // the format of w (weight_formats.cuh)
  static constexpr bool kQuantized = Format::kScaled;
  static constexpr bool kE4M3 = std::is_same_v<Format, E4M3ByE4M3>;
  using Params = std::conditional_t<kQuantized, QuantizedTileParams,
                                    std::conditional_t<kE4M3, E4M3TileParams, TileParams>>;
  static constexpr int kTokens = kTokens_, kRows = kRows_;
  static constexpr bool kSwiglu = kSwiglu_;
  static constexpr int kOutColumns = kSwiglu ? kRows / 2 : kRows;
  static constexpr int kHalfTokens = kTokens / 2;
  static constexpr int kBoxes = kSwiglu ? 4 : 1;  // TMA copies of w for a stage
  static constexpr int kBoxRows = kRows / kBoxes;
  static constexpr bool kSplitsRows = kTokens == 64;
  static constexpr int kConsumerGroups = kTokens == 192 ? 3 : 2;  // warpgroups
  static constexpr int kConsumers = kConsumerGroups * 128;
  static constexpr int kThreads = kConsumers + (kQuantized ? 2 : 1) * 128;
  /// How many times 64 tokens a warpgroup has.
  static constexpr int kBlocks = kSplitsRows ? 1 : kTokens / kConsumerGroups / 64;
  static constexpr int kGroupRows = kSplitsRows ? kRows / 2 : kRows;
  static constexpr int kColumns = kE4M3 ? kQuantizedChunk : kChunk;  // columns of k in a stage
  static constexpr int kStageBytes = (kTokens + kRows) * kChunkBytes;
  static constexpr int kScaleBytes = kE4M3 ? kTokens * 4 : 0;  // the scales of x in a stage
  /// The registers of a thread in each kind of warpgroup, which share those of a multiprocessor.
  static constexpr bool kFewSums = kBlocks * kGroupRows <= 192;
  static constexpr int kProducerRegisters = 40, kDequantizerRegisters = kFewSums ? 104 : 56;
  static constexpr int kRegisters = kQuantized             ? kFewSums ? 184 : 208
                                    : kConsumerGroups == 3 ? 152
                                                           : 232;
  static_assert(!kQuantized || kConsumerGroups == 2);
  /// A thread block begins and ends with a whole step of k: a raw stage has several chunks.
  static constexpr int kStep = kQuantized ? kQuantizedChunk / kChunk : 1;
  /// Raw stages hold the bytes of w that are on their way from memory. With many tokens
  /// multiplications take longer than copies of w, so x gets more of the shared memory.
  static constexpr int kMemory = 226 << 10, kRawMemory = (kTokens == 256 ? 54 : 72) << 10;
  static constexpr int kRawBytes = kQuantized ? RawStage<Format>::bytes(kRows, kBoxes) : 0;
  static constexpr int kRawStages =
      kQuantized ? std::max(kRawMemory / std::max(kRawBytes, 1), 2) : 0;
  static constexpr int kAllRawBytes = kRawStages * (kRawBytes + 16);
  static constexpr int kStages = (kMemory - kAllRawBytes) / (kStageBytes + kScaleBytes + 16);
  static constexpr int kSharedBytes = kStages * (kStageBytes + kScaleBytes + 16) + kAllRawBytes;
  static_assert(kStages >= 3);
  static constexpr int kRowPairs = kGroupRows / 8;  // pairs of columns that a thread has in a row
  /// The offset of a box in its stage, and its first row of w. With SwiGLU box 2 h + i holds half h
  /// of the gates (i = 0) or of the ups (i = 1).
  static __device__ int box_offset(int box) {
    return (kTokens + box_place(box) * kBoxRows) * kChunkBytes;
  }
  static __device__ int box_row(int column, int box, int n) {
    return box % 2 * n + column + box / 2 * kBoxRows;
  }
  /// Which of the boxes in a stage this one is; also which box is at this place.
  static __device__ int box_place(int box) {
    return kSplitsRows || kBoxes == 1 ? box : box % 2 * 2 + box / 2;
  }
};

/// The rings of a thread block in shared memory: first stages with x and w in the layout of wgmma,
/// then raw stages of a quantized w, then the scales of x, then two mbarriers for each stage, one
/// for full and one for empty.
template <class Tile>
struct Rings {
  uint32_t shared;
  __device__ uint32_t stage(int i) const { return shared + i * Tile::kStageBytes; }
  __device__ uint32_t raw_stage(int i) const { return stage(Tile::kStages) + i * Tile::kRawBytes; }
  __device__ uint32_t scales(int i) const {
    return raw_stage(Tile::kRawStages) + i * Tile::kScaleBytes;
  }
  __device__ uint32_t full(int i) const { return scales(Tile::kStages) + i * 8; }
  __device__ uint32_t empty(int i) const { return full(Tile::kStages + i); }
  __device__ uint32_t raw_full(int i) const { return empty(Tile::kStages + i); }
  __device__ uint32_t raw_empty(int i) const { return raw_full(Tile::kRawStages + i); }
};

// -- epilogues

/// Stores 16 bytes in one instruction; the compiler might split an ordinary store into four.
__device__ __forceinline__ void store16(void* to, uint4 x) {
  asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(x.x), "r"(x.y), "r"(x.z),
               "r"(x.w)
               : "memory");
}

/// A thread's sums, as wgmma leaves them (wgmma.cuh).
template <class Tile>
using TileSums = float[Tile::kBlocks][Tile::kGroupRows / 2];

/// Where a thread's sums belong. In each block of 64 tokens, thread t of a warpgroup has token
/// t % 128 / 32 * 16 + t % 32 / 4 and the token 8 further on. first_token is the thread's first
/// token, first_column the first column of its warpgroup; tokens from last_token on belong to other
/// tiles. The epilogue multiplies each token's sums by its entry of `factors` (a DeferredNorm), if
/// that is not null. It must not change the sums themselves, since that would serialise the next
/// wgmmas.
struct Corner {
  int first_token, first_column, last_token;
  const float* factors = nullptr;
};
__device__ __forceinline__ int token_at(const Corner& at, int row) {
  return at.first_token + row / 2 * 64 + row % 2 * 8;
}
__device__ __forceinline__ float factor_at(const Corner& at, int row) {
  return at.factors != nullptr ? at.factors[min(token_at(at, row), kNormTokens - 1)] : 1;
}

/// Gives each lane of a quad one of the four groups of eight columns from pair `first` on: the even
/// (`which` = 0) or odd columns of the group, times `factor`. Groups beyond the last one repeat it.
/// This is an exchange: in each of its rows a thread has kRowPairs pairs of neighbouring columns,
/// eight columns apart, and the four lanes of a quad together have whole groups.
template <class Tile>
__device__ inline uint4 gather_columns(const TileSums<Tile>& sums, int row, int first, int which,
                                       float factor = 1) {
  const auto bits = [&](int i) {
    const int pair = min(first + i, Tile::kRowPairs - 1);
    return __float_as_uint(sums[row / 2][4 * pair + row % 2 * 2 + which] * factor);
  };
  return transpose_quad(bits(0), bits(1), bits(2), bits(3));
}

/// The epilogue with SwiGLU. A thread has the gate and the up of each of its outputs.
template <class Tile>
__device__ __forceinline__ void store_swiglu(const TileParams& p, const Corner& at,
                                             const TileSums<Tile>& sums) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int row = 0; row < 2 * Tile::kBlocks; ++row) {
    const int token = token_at(at, row);
    const float factor = factor_at(at, row);
    Bf16* const out = static_cast<Bf16*>(p.args.out) + int64_t{token} * p.args.n + at.first_column;
    const auto word = [&](int j) {  // features 8 j + lane % 4 * 2 and the next
      const float* const sum = sums[row / 2] + 4 * j + row % 2 * 2;
      const float gate[2] = {sum[0] * factor, sum[1] * factor};
      const float up[2] = {sum[Tile::kGroupRows / 4] * factor,
                           sum[Tile::kGroupRows / 4 + 1] * factor};
      return swiglu_pair(gate, up);
    };
    const auto there = [&](int column) {
      return token < at.last_token && at.first_column + column < p.args.n;
    };
    constexpr int kWords = Tile::kGroupRows / 16, kInFours = kWords / 4 * 4;
#pragma unroll
    for (int j = 0; j < kInFours; j += 4) {
      const uint4 y = transpose_quad(word(j), word(j + 1), word(j + 2), word(j + 3));
      const int column = (j + lane % 4) * 8;
      if (there(column)) store16(out + column, y);
    }
#pragma unroll
    for (int j = kInFours; j < kWords; ++j) {
      const uint32_t y = word(j);
      const int column = j * 8 + lane % 4 * 2;
      if (there(column)) *reinterpret_cast<uint32_t*>(out + column) = y;
    }
  }
}

/// A barrier of 2^bits threads that call this with the same counter: what they wrote before is
/// visible to all of them afterwards. Counters are not reset; they go on counting in the next
/// kernel.
__device__ __forceinline__ void wait_for_all(uint32_t* counter, int bits) {
  uint32_t before;
  asm volatile("atom.add.release.gpu.global.u32 %0, [%1], 1;"
               : "=r"(before)
               : "l"(counter)
               : "memory");
  const uint32_t all = ((before >> bits) + 1) << bits;
  while (static_cast<int32_t>(load_acquire(counter) - all) < 0) {
  }
}

/// The epilogue without SwiGLU. The lanes of a quad exchange columns (gather_columns()), so that
/// each lane stores pieces of eight neighbouring columns.
template <class Tile>
struct TileStore {
  static constexpr int kRows = 2 * Tile::kBlocks, kRowPairs = Tile::kRowPairs;
  static constexpr int kPairs = kRows * kRowPairs, kConsumers = Tile::kConsumers;
  static constexpr int kMaxSplit = 4;
  const TileParams& p;
  const Corner at;

  /// Eight columns of a token, and their old values with kAdd; `out` is null outside of the matrix.
  struct Piece {
    void* out = nullptr;
    int column = 0;
    uint4 old = {};
  };
  __device__ __forceinline__ Piece piece(int row, int j) const {
    Piece piece = {.column = at.first_column + j * 8};
    const int token = token_at(at, row);
    if (j >= kRowPairs || token >= at.last_token || piece.column >= p.args.n) return piece;
    const int64_t place = int64_t{token} * p.args.n + piece.column;
    if (p.args.float_out) {
      piece.out = static_cast<float*>(p.args.out) + place;
      return piece;
    }
    piece.out = static_cast<Bf16*>(p.args.out) + place;
    if (p.args.epilogue == Epilogue::kAdd) piece.old = *static_cast<const uint4*>(piece.out);
    return piece;
  }
  /// Stores a piece, whose sums are `even` and `odd` columns.
  __device__ __forceinline__ void finish(const Piece& piece, const float (&even)[4],
                                         const float (&odd)[4]) const {
    if (piece.out == nullptr) return;
    const uint32_t old[4] = {piece.old.x, piece.old.y, piece.old.z, piece.old.w};
    uint32_t words[4], bits[8];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      float2 bias = {};
      if (p.args.bias != nullptr)
        bias = {p.args.bias[piece.column + 2 * i], p.args.bias[piece.column + 2 * i + 1]};
      const float left = even[i] + bias.x, right = odd[i] + bias.y;
      bits[2 * i] = __float_as_uint(left), bits[2 * i + 1] = __float_as_uint(right);
      words[i] = pack<Bf16>(left + __uint_as_float(old[i] << 16),
                            right + __uint_as_float(old[i] & 0xffff0000));
    }
    if (p.args.float_out) {
      store16(piece.out, {bits[0], bits[1], bits[2], bits[3]});
      store16(static_cast<float*>(piece.out) + 4, {bits[4], bits[5], bits[6], bits[7]});
      return;
    }
    store16(piece.out, {words[0], words[1], words[2], words[3]});
  }

  __device__ void store_whole(const TileSums<Tile>& sums) const {
    constexpr int kQuads = (kRowPairs + 3) / 4;
    const int lane = threadIdx.x % 4;
    // The old values of a row are loaded while the row before is stored.
    Piece next[kQuads];
    const auto load = [&](int row) {
#pragma unroll
      for (int quad = 0; quad < kQuads; ++quad) next[quad] = piece(row, quad * 4 + lane);
    };
    load(0);
#pragma unroll
    for (int row = 0; row < kRows; ++row) {
      Piece now[kQuads];
#pragma unroll
      for (int quad = 0; quad < kQuads; ++quad) now[quad] = next[quad];
      if (row + 1 < kRows) load(row + 1);
      const float factor = factor_at(at, row);
#pragma unroll
      for (int quad = 0; quad < kQuads; ++quad) {
        const auto columns = [&](int which) {
          return gather_columns<Tile>(sums, row, quad * 4, which, factor);
        };
        const uint4 even = columns(0), odd = columns(1);
        finish(now[quad], reinterpret_cast<const float(&)[4]>(even),
               reinterpret_cast<const float(&)[4]>(odd));
      }
    }
  }

  /// Split-K: the thread blocks of a tile write their sums to the scratch. The warpgroups that have
  /// the same sums in these thread blocks wait for each other. Then each reads all sums of its
  /// share of the pieces, adds them in the order of k, and stores them.
  __device__ void store_part(const TileSums<Tile>& sums, int part) const {
    const int split = 1 << p.split_bits, group = static_cast<int>(threadIdx.x) / 128;
    float2* const own = static_cast<float2*>(p.scratch.parts) +
                        int64_t{blockIdx.x} * (kPairs * kConsumers) + threadIdx.x;
    float factor = 1;
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
      const float* const sum =
          sums[i / kRowPairs / 2] + 4 * (i % kRowPairs) + i / kRowPairs % 2 * 2;
      if (i % kRowPairs == 0) factor = factor_at(at, i / kRowPairs);
      __stcg(own + i * kConsumers, float2{sum[0] * factor, sum[1] * factor});
    }
    const auto sync = [&] {  // constant ids, since a variable id would reserve all 16 barriers
      if (group == 0) named_barrier_sync(1, 128);
      else if (group == 1) named_barrier_sync(2, 128);
      else named_barrier_sync(3, 128);
    };
    sync();
    if (threadIdx.x % 128 == 0) {
      const int tile = (static_cast<int>(blockIdx.x) / 2 >> p.split_bits) * 2 + cluster_rank();
      const int first = split == 2 ? 0 : static_cast<int>(kTileCounters / 2);
      wait_for_all(p.scratch.counters + first + tile * Tile::kConsumerGroups + group, p.split_bits);
    }
    sync();

    // The thread blocks of a tile are two apart, since the two of a cluster work on different
    // tiles.
    constexpr int kStep = 2 * kPairs * kConsumers, kBatch = 2;
    constexpr size_t kMostBlocks = 144;  // multiprocessors of a whole GH100
    static_assert(kPairs % kMaxSplit == 0 &&
                  kMostBlocks * kPairs * kConsumers * sizeof(float2) <= kTilePartBytes &&
                  kMostBlocks * Tile::kConsumerGroups <= kTileCounters);
    const int count = kPairs / split, first = part * count, lane = threadIdx.x % 4;
    const float2* const from = own - part * kStep - lane;
    for (int done = lane; done < count; done += 4 * kBatch) {
      Piece pieces[kBatch];
      float4 loaded[kBatch][kMaxSplit][2] = {};  // all loads are issued before the first is used
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        if (done + 4 * i >= count) continue;
        const int place = first + done + 4 * i;
        pieces[i] = piece(place / kRowPairs, place % kRowPairs);
#pragma unroll
        for (int k = 0; k < kMaxSplit; ++k) {
          if (k >= split) continue;
          const auto* const from_part =
              reinterpret_cast<const float4*>(from + k * kStep + place * kConsumers);
          loaded[i][k][0] = __ldcg(from_part);
          loaded[i][k][1] = __ldcg(from_part + 1);
        }
      }
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        float x[4] = {}, y[4] = {};
#pragma unroll
        for (int k = 0; k < kMaxSplit; ++k) {
          const float4 low = loaded[i][k][0], high = loaded[i][k][1];
          x[0] += low.x, y[0] += low.y, x[1] += low.z, y[1] += low.w;
          x[2] += high.x, y[2] += high.y, x[3] += high.z, y[3] += high.w;
        }
        finish(pieces[i], x, y);
      }
    }
  }
};

}  // namespace nanovllm::cuda
