#pragma once

#include <algorithm>

#include "nanovllm/ops/cuda/collectives/pairs.cuh"
#include "nanovllm/ops/cuda/elementwise/row_ops.cuh"
#include "nanovllm/ops/cuda/gemm/few_items.cuh"
#include "nanovllm/ops/cuda/gemm/quantized/small.h"

//   out [T, n] = x w^T + bias, out += x w^T, or SwiGLU (Epilogue),
// for up to 16 tokens T and a quantized w. The design is that of small_gemm.cuh: small thread
// blocks prefetch most of their weights before the previous kernel has ended, and each warp
// multiplies every eighth chunk of k (few_items.cuh). A thread block takes 8 to 32 columns of out
// at a time. Besides reading the weights, converting them bounds it, so the number of instructions
// counts. Therefore x goes through the warp's ring too, in rows that lanes copy together, and
// neither x nor the stage of the ring needs an unrolled loop. A norm of x is a DeferredNorm, which
// costs one factor for each token.
//
// A stage of a warp's ring has the chunk of w (few_multiply.cuh), then 256 bytes of x for each
// token, whose 16-byte pieces are stored at their number ^ (token % 8), so that lanes that read the
// same piece of eight tokens cause no bank conflicts.
namespace nanovllm::cuda {

// -- layout

constexpr int kXRowBytes = kQuantizedChunk * 2;

/// The most bytes of a thread block's ring, unless two stages need more. Two thread blocks have
/// room on a multiprocessor, and when one of them ends, one of the next kernel has. With one token
/// and int4 the thread blocks of the next kernel have room beside both, which gains more than
/// larger rings would. If each multiprocessor has at most one thread block, a large ring also keeps
/// a second one away, which would end late while other multiprocessors have nothing to do.
template <int kMaxTokens, bool kIsAlone>
constexpr int kRingBytes = kIsAlone ? 170 << 10 : (kMaxTokens == 1 ? 48 : 88) << 10;

/// The ring of a thread block with kTiles tiles of w and room for kMaxTokens tokens.
template <class Format, int kMaxTokens, int kTiles, bool kIsAlone>
struct QuantizedRing {
  static constexpr int kWeightBytes = kTilesBytes<Format, kTiles>;
  static constexpr int kXBytes = kMaxTokens * kXRowBytes;
  // Rows of x begin at multiples of 256 bytes.
  static constexpr int kXAt = (kWeightBytes + kXRowBytes - 1) / kXRowBytes * kXRowBytes;
  static constexpr int kStageBytes = kXAt + kXBytes;
  static constexpr int kStages =
      std::clamp(kRingBytes<kMaxTokens, kIsAlone> / (kFewWarps * kStageBytes), 2, 6);
  static constexpr int kWarpBytes = kStages * kStageBytes;
  static constexpr int kSums = kTiles * ((kMaxTokens + 7) / 8 * 8) * kSumPitch;  // floats of a warp
  /// The rings, the sums, and a factor for each token.
  static constexpr size_t kBytes = size_t{kFewWarps} * (kWarpBytes + kSums * 4) + kMaxTokens * 4;
};

// -- kernel

/// A thread block computes an item, which is kTiles tiles of w for all tokens; with SwiGLU it takes
/// every gridDim.x-th item.
template <class Format, FewTile kTile, int kMaxTokens, int kTiles, bool kIsAlone>
__global__ void __launch_bounds__(kFewThreads, kMaxTokens > 8 || kIsAlone ? 1 : 2)
    quantized_small_kernel(const __grid_constant__ QuantizedSmall params) {
  using T = typename Format::T;
  using Ring = QuantizedRing<Format, kMaxTokens, kTiles, kIsAlone>;
  constexpr bool kLoops = kTile == FewTile::kSwiglu;
  constexpr int kStages = Ring::kStages, kTokenTiles = (kMaxTokens + 7) / 8;
  constexpr int kColumns = kTileColumns<kTile>, kBlockColumns = kTiles * kColumns;
  const GemmArgs& p = params.args;
  const QuantizedWeight& weight = params.weight;
  extern __shared__ __align__(256) unsigned char shared[];
  float* const sums = reinterpret_cast<float*>(shared + kFewWarps * Ring::kWarpBytes);
  float* const factors = sums + kFewWarps * Ring::kSums;  // the norm's, one for each token
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int num_items = (p.n + kBlockColumns - 1) / kBlockColumns;
  FewItems<Format, kTile, kTiles, kStages, kLoops, /*kXInRing=*/true> items(
      weight, p.n, p.k, num_items, shared_address(shared), Ring::kStageBytes);
  const int num_chunks = items.num_chunks, num_filled = items.begin();
  // If all weights fit the rings, the next kernel may start, and load its weights, only when the
  // previous kernel has ended, so that its loads do not delay this kernel's x. If this kernel loads
  // more weights later, the next kernel may start at once. sum_pairs() relies on the wait.
  const bool sends = kTile == FewTile::kWhole && params.peers.world > 1;
  const bool is_long = (num_chunks > kStages * kFewWarps || num_items > gridDim.x) && !sends;
  if (is_long) launch_dependents();
  wait_for_previous_kernel();
  if (!is_long) launch_dependents();

  // Half a warp copies a token's part of a chunk. Behind the last column x is zero.
  const int first_x = warp * kQuantizedChunk + lane % 16 * 8;
  int x_column = first_x;
  const auto* const x_from =
      static_cast<const unsigned char*>(p.x) + (lane / 16 * int64_t{p.k} + first_x) * 2;
  const uint32_t two_rows = p.k * 4;  // bytes
  const uint32_t x_to = Ring::kXAt + lane / 16 * kXRowBytes + (lane % 16 ^ lane / 16) * 16;
  const auto fetch_x = [&](uint32_t stage) {
#pragma unroll
    for (int i = 0; i < (kMaxTokens + 1) / 2; ++i) {
      // Tokens that do not exist are zero: a branch would take longer.
      const bool exists = x_column < p.k && 2 * i + lane / 16 < p.num_tokens;
      if (kMaxTokens > 1 || lane < 16)
        async_copy16_or_zero(((stage + x_to) ^ i % 4 * 32) + 2 * i * kXRowBytes,
                             x_from + uint64_t{two_rows} * i + (x_column - first_x) * 2, exists);
    }
    x_column += kFewWarps * kQuantizedChunk;
    if (kLoops && x_column >= num_chunks * kQuantizedChunk) x_column = first_x;
  };
#pragma unroll
  for (int i = 0; i < kStages; ++i) {
    if (i < num_filled) fetch_x(items.ring + i * Ring::kStageBytes);
    commit_async_copies();
  }
  if (p.epilogue != Epilogue::kAdd) {
    for (int token = warp; token < p.num_tokens; token += kFewWarps) {
      float squares = 0;
      if (params.norm.squares != nullptr)
        for (int part = lane; part < params.norm.num_parts; part += 32)
          squares += params.norm.squares[part * kNormTokens + token];
      squares = warp_sum(squares);
      if (lane == 0)
        factors[token] = params.norm.squares != nullptr ? rms_factor(squares, p.k, p.eps) : 1;
    }
  }
  // Tokens that do not exist repeat the last one.
  uint32_t x_rows[kTokenTiles];
#pragma unroll
  for (int t = 0; t < kTokenTiles; ++t) {
    const int row = Format::kInOrder ? lane / 4 : lane % 8;
    const int token = min(t * 8 + row, p.num_tokens - 1);
    x_rows[t] = Ring::kXAt + token * kXRowBytes + token % 8 * 16;
  }

  const bool begins_norm = p.epilogue == Epilogue::kAdd && params.norm.weight != nullptr;
  constexpr int kOutputs = (kMaxTokens * kBlockColumns + kFewThreads - 1) / kFewThreads;
  int item = blockIdx.x;
#pragma unroll 1
  do {
    // A thread's outputs, and what they need besides the sums.
    const int first_column = item * kBlockColumns;
    const auto is_output = [&](int at) {
      return at < p.num_tokens * kBlockColumns && first_column + at % kBlockColumns < p.n;
    };
    const auto out_at = [&](int at) {
      return static_cast<T*>(p.out) + int64_t{at / kBlockColumns} * p.n + first_column +
             at % kBlockColumns;
    };
    const int column = first_column + threadIdx.x % kBlockColumns;
    float norm_weight = 0;
    if (begins_norm && column < p.n) norm_weight = params.norm.weight[column];
    float old[kOutputs] = {};
    if (p.epilogue == Epilogue::kAdd) {
#pragma unroll
      for (int i = 0; i < kOutputs; ++i) {
        const int at = threadIdx.x + i * kFewThreads;
        if (is_output(at)) old[i] = to_float(*out_at(at));
      }
    }
    float acc[kTiles][kTokenTiles][4] = {};
    items.template multiply<1, kTokenTiles>(
        acc, acc[0][0],
        [&](auto& x, const FewStep& step) {
#pragma unroll
          for (int t = 0; t < kTokenTiles; ++t)
            load_x<Format>(x[t],
                           [&](int, int piece) { return (step.stage + x_rows[t]) ^ piece * 16; });
        },
        [&](const FewStep& step) { fetch_x(step.stage); });
    const uint32_t epoch = sends ? current_epoch(params.peers) : 0;
    store_sums(sums + warp * Ring::kSums, acc);
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kOutputs; ++i) {
      const int at = threadIdx.x + i * kFewThreads, token = at / kBlockColumns;
      const int column_of_block = at % kBlockColumns;
      float y = 0, up = 0;
      if (is_output(at)) {
        const float* const from =
            sums + (column_of_block / kColumns * kTokenTiles * 8 + token) * kSumPitch +
            column_of_block % kColumns;
        y = add_warps(0, from, Ring::kSums);
        if constexpr (kTile == FewTile::kSwiglu) up = add_warps(0, from + 8, Ring::kSums);
      }
      if constexpr (kTile == FewTile::kSwiglu) {
        if (is_output(at)) *out_at(at) = swiglu_of_sums<T>(y * factors[token], up * factors[token]);
      } else if (sends) {
        if (is_output(at))
          send_element<T>(params.peers, epoch, out_at(at) - static_cast<T*>(p.out), old[i] + y);
      } else if (p.epilogue == Epilogue::kAdd) {
        const T sum = from_float<T>(old[i] + y);
        if (is_output(at)) *out_at(at) = sum;
        if (begins_norm) {
          // All lanes of a token take part, also those behind the last column.
          const float value = is_output(at) ? to_float(sum) : 0;
          const float squares = lanes_sum(value * value, std::min(kBlockColumns, 32));
          if (is_output(at)) {
            static_cast<T*>(params.norm.x)[out_at(at) - static_cast<T*>(p.out)] =
                from_float<T>(value * norm_weight);
            if (column_of_block == 0) params.norm.squares[item * kNormTokens + token] = squares;
          }
        }
      } else if (is_output(at)) {
        y *= factors[token];
        if (p.bias != nullptr) y += p.bias[first_column + column_of_block];
        if (p.float_out) static_cast<float*>(p.out)[out_at(at) - static_cast<T*>(p.out)] = y;
        else *out_at(at) = from_float<T>(y);
      }
    }
    item += gridDim.x;
    if (kLoops && item < num_items) __syncthreads();  // all have read the sums
  } while (kLoops && item < num_items);
}

// -- launcher

template <class Format, FewTile kTile, int kMaxTokens, int kTiles, bool kIsAlone = false>
void launch_quantized_small(Launch where, const QuantizedSmall& params) {
  using Ring = QuantizedRing<Format, kMaxTokens, kTiles, kIsAlone>;
  constexpr auto kernel = quantized_small_kernel<Format, kTile, kMaxTokens, kTiles, kIsAlone>;
  constexpr int kBlockColumns = kTiles * kTileColumns<kTile>;
  // A DeferredNorm has a part for each item.
  static_assert(kTile == FewTile::kSwiglu || kBlockColumns <= 32);
  allow_shared_memory<kernel>();
  // With SwiGLU there are as many thread blocks as fit on the GPU at once, so that each loads the
  // weights of its next item while it adds up the sums of its warps.
  const int num_items = (params.args.n + kBlockColumns - 1) / kBlockColumns;
  const int most_blocks =
      kTile == FewTile::kSwiglu ? where.num_sms * (kMaxTokens > 8 ? 1 : 2) : num_items;
  launch(where, kernel, blocks_for(std::min(num_items, most_blocks)), kFewThreads, Ring::kBytes,
         params);
}

/// The number of tiles of a thread block: the fastest one, or one tile, which needs less shared
/// memory.
template <class Format, FewTile kTile>
constexpr int tiles_of(bool has_one_tile) {
  if (has_one_tile) return 1;
  return kTile == FewTile::kSwiglu && Format::kPieces == 1 ? 3 : 2;
}

/// Calls a function with the number of tokens that a kernel has room for.
template <class Format, class Body>
auto with_room_for(int num_tokens, Body body) {
  if constexpr (Format::kPieces == 1)  // int4
    if (num_tokens == 1) return body.template operator()<1>();
  if (num_tokens <= 4) return body.template operator()<4>();
  if (num_tokens <= 8) return body.template operator()<8>();
  return body.template operator()<16>();
}

template <class Format>
size_t quantized_small_bytes(const GemmArgs& args, bool has_one_tile) {
  return with_room_for<Format>(args.num_tokens, [&]<int kMaxTokens>() {
    const auto bytes = [&]<FewTile kTile>() {
      return has_one_tile
                 ? QuantizedRing<Format, kMaxTokens, tiles_of<Format, kTile>(true), false>::kBytes
                 : QuantizedRing<Format, kMaxTokens, tiles_of<Format, kTile>(false), false>::kBytes;
    };
    return args.epilogue == Epilogue::kSwiglu ? bytes.template operator()<FewTile::kSwiglu>()
                                              : bytes.template operator()<FewTile::kWhole>();
  });
}

template <class Format>
void run_quantized_small(Launch where, const QuantizedSmall& params, bool has_one_tile) {
  const GemmArgs& args = params.args;
  with_room_for<Format>(args.num_tokens, [&]<int kMaxTokens>() {
    constexpr auto kSwiglu = FewTile::kSwiglu, kWhole = FewTile::kWhole;
    constexpr int kSwigluTiles = tiles_of<Format, kSwiglu>(false);
    if (args.epilogue == Epilogue::kSwiglu) {
      // The other instances fit in the shared memory of every GPU.
      if constexpr (QuantizedRing<Format, kMaxTokens, kSwigluTiles, false>::kBytes >
                    kLeastSharedBytes)
        if (has_one_tile)
          return launch_quantized_small<Format, kSwiglu, kMaxTokens, 1>(where, params);
      return launch_quantized_small<Format, kSwiglu, kMaxTokens, kSwigluTiles>(where, params);
    }
    if (has_one_tile) return launch_quantized_small<Format, kWhole, kMaxTokens, 1>(where, params);
    if constexpr (kMaxTokens <= 8)  // large rings are not compiled for more tokens
      if (args.n <= 32 * where.num_sms &&
          QuantizedRing<Format, kMaxTokens, 2, true>::kBytes <= size_t(where.shared_bytes))
        return launch_quantized_small<Format, kWhole, kMaxTokens, 2, true>(where, params);
    launch_quantized_small<Format, kWhole, kMaxTokens, 2>(where, params);
  });
}

}  // namespace nanovllm::cuda
