#pragma once

#include <algorithm>

#include "nanovllm/ops/cuda/collectives/pairs.cuh"
#include "nanovllm/ops/cuda/elementwise/row_ops.cuh"
#include "nanovllm/ops/cuda/gemm/few_multiply.cuh"
#include "nanovllm/ops/cuda/gemm/quantized/small.h"

// GEMMs of up to 16 tokens with quantized weights. They are like those of small_gemm.cuh: small
// thread blocks prefetch most of their weights before the previous kernel has ended, and each warp
// multiplies every eighth chunk of k. But here the number of instructions counts. So x travels
// through the warp's ring too, in rows that lanes copy together, and neither it nor the stage of
// the ring needs an unrolled loop. A norm of x is a DeferredNorm, which costs one factor for each
// token.
//
// A stage of a warp's ring has the chunk of w (few_multiply.cuh), then 256 bytes of x for each
// token, whose 16-byte pieces are stored at their number ^ (token % 8), so that lanes that read the
// same piece of eight tokens cause no bank conflicts.
namespace nanovllm::cuda {

// -- layout

/// What the 16 rows of w are that one matrix instruction multiplies.
enum class QuantizedTile {
  kWhole,   // 16 columns of out
  kSwiglu,  // the gates of 8 columns, then their ups
};

constexpr int kQuantizedWarps = 8, kQuantizedThreads = kQuantizedWarps * 32;
constexpr int kXRowBytes = kQuantizedChunk * 2;

/// The most bytes of a thread block's ring, unless two stages need more. Two thread blocks have
/// room on a multiprocessor, and when one of them ends, one of the next kernel. With one token and
/// int4 the next kernel's have room beside both, which gains more than larger rings would.
template <int kMaxTokens>
constexpr int kRingBytes = (kMaxTokens == 1 ? 48 : 88) << 10;

/// The ring of a thread block with tiles for `kMaxTokens` tokens.
template <class Format, int kMaxTokens, int kTiles>
struct QuantizedRing {
  static constexpr int kWeightBytes = kTiles * (kTileValueBytes<Format> + kTileScaleBytes<Format>);
  static constexpr int kXBytes = kMaxTokens * kXRowBytes;
  // Rows of x begin at multiples of 256 bytes.
  static constexpr int kXAt = (kWeightBytes + kXRowBytes - 1) / kXRowBytes * kXRowBytes;
  static constexpr int kStageBytes = kXAt + kXBytes;
  static constexpr int kStages =
      std::clamp(kRingBytes<kMaxTokens> / (kQuantizedWarps * kStageBytes), 2, 6);
  static constexpr int kWarpBytes = kStages * kStageBytes;
  static_assert(kTiles * (kMaxTokens + 7) / 8 * 8 * kSumPitch * 4 <= kWarpBytes,
                "the sums need more memory than the ring");
};

// -- kernel

/// kTiles: tiles of w in a thread block.
template <class Format, QuantizedTile kTile, int kMaxTokens, int kTiles>
__global__ void __launch_bounds__(kQuantizedThreads, kMaxTokens > 8 ? 1 : 2)
    quantized_small_kernel(const __grid_constant__ QuantizedSmall params) {
  using T = typename Format::T;
  using Ring = QuantizedRing<Format, kMaxTokens, kTiles>;
  constexpr int kStages = Ring::kStages, kTokenTiles = (kMaxTokens + 7) / 8;
  constexpr int kColumns = kTile == QuantizedTile::kWhole ? 16 : 8;
  constexpr int kBlockColumns = kTiles * kColumns;
  const GemmArgs& p = params.args;
  const QuantizedWeight& weight = params.weight;
  extern __shared__ __align__(256) unsigned char shared[];
  float* const factors =  // of the norm, for each token
      reinterpret_cast<float*>(shared + kQuantizedWarps * Ring::kWarpBytes);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int num_chunks = (p.k + kQuantizedChunk - 1) / kQuantizedChunk;
  const int first_column = blockIdx.x * kBlockColumns;
  const uint32_t ring = shared_address(shared) + warp * Ring::kWarpBytes;

  ChunkSource<Format, kTiles> source;
  // A tile behind the last column repeats the last tile, and its sums are not stored.
  source.begin(weight, warp, [&](int tile, int row) {
    return int64_t{min(first_column + tile * kColumns, p.n - kColumns)} + row % 8 +
           row / 8 * (kTile == QuantizedTile::kSwiglu ? p.n : 8);
  });
  const auto stage_of = [&](int i) { return ring + i * Ring::kStageBytes; };
#pragma unroll
  for (int i = 0; i < kStages; ++i)
    if (warp + i * kQuantizedWarps < num_chunks) source.fetch(stage_of(i), kQuantizedWarps);
  // A thread's outputs, and what they need that the previous kernel does not write.
  constexpr int kOutputs = (kMaxTokens * kBlockColumns + kQuantizedThreads - 1) / kQuantizedThreads;
  const auto is_output = [&](int at) {
    return at < p.num_tokens * kBlockColumns && first_column + at % kBlockColumns < p.n;
  };
  const bool begins_norm = p.epilogue == Epilogue::kAdd && params.norm.weight != nullptr;
  const int column = first_column + threadIdx.x % kBlockColumns;
  float norm_weight = 0;
  if (begins_norm && column < p.n) norm_weight = params.norm.weight[column];
  // If all weights fit the rings, the next kernel may start, and load its weights, only when the
  // previous kernel has ended, so that its loads do not delay this kernel's x. If this kernel loads
  // more weights later, the next kernel may start at once.
  // The same holds if the next kernel is sum_pairs().
  const bool sends = kTile == QuantizedTile::kWhole && params.peers.world > 1;
  const bool is_long = num_chunks > kStages * kQuantizedWarps && !sends;
  if (is_long) launch_dependents();
  wait_for_previous_kernel();
  if (!is_long) launch_dependents();

  // Half a warp copies a token's part of a chunk. Behind the last column x is zero.
  int x_column = warp * kQuantizedChunk + lane % 16 * 8;
  const T* x_from = static_cast<const T*>(p.x) + lane / 16 * int64_t{p.k} + x_column;
  const uint32_t x_to = Ring::kXAt + lane / 16 * kXRowBytes + (lane % 16 ^ lane / 16) * 16;
  const auto fetch_x = [&](uint32_t stage) {
    const bool exists = x_column < p.k;
#pragma unroll
    for (int i = 0; i < (kMaxTokens + 1) / 2; ++i)
      if (2 * i + lane / 16 < p.num_tokens)
        async_copy16_or_zero(((stage + x_to) ^ i % 4 * 32) + 2 * i * kXRowBytes,
                             exists ? x_from + 2 * i * int64_t{p.k} : p.x, exists);
    x_column += kQuantizedWarps * kQuantizedChunk;
    x_from += kQuantizedWarps * kQuantizedChunk;
  };
#pragma unroll
  for (int i = 0; i < kStages; ++i) {
    if (warp + i * kQuantizedWarps < num_chunks) fetch_x(stage_of(i));
    commit_async_copies();
  }
  const auto out_at = [&](int at) {
    return static_cast<T*>(p.out) + int64_t{at / kBlockColumns} * p.n + first_column +
           at % kBlockColumns;
  };
  float old[kOutputs] = {};
  if (p.epilogue == Epilogue::kAdd) {
#pragma unroll
    for (int i = 0; i < kOutputs; ++i) {
      const int at = threadIdx.x + i * kQuantizedThreads;
      if (is_output(at)) old[i] = to_float(*out_at(at));
    }
  } else {
    for (int token = warp; token < p.num_tokens; token += kQuantizedWarps) {
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
  float acc[kTiles][kTokenTiles][4] = {};
  uint32_t stage = ring;
#pragma unroll 1
  for (int chunk = warp; chunk < num_chunks; chunk += kQuantizedWarps) {
    wait_async_copies<kStages - 1>();
    __syncwarp();  // other lanes have copied x and the scales
    uint4 x[kTokenTiles][Format::kGroups];
#pragma unroll
    for (int t = 0; t < kTokenTiles; ++t)
      load_x<Format>(x[t], [&](int, int piece) { return (stage + x_rows[t]) ^ piece * 16; });
    multiply_chunk<Format>(acc, stage, x, weight);
    __syncwarp();  // all lanes have read them
    if (chunk + kStages * kQuantizedWarps < num_chunks) {
      source.fetch(stage, kQuantizedWarps);
      fetch_x(stage);
    }
    commit_async_copies();
    stage += Ring::kStageBytes;
    if (stage == ring + Ring::kWarpBytes) stage = ring;
  }

  const uint32_t epoch = sends ? current_epoch(params.peers) : 0;
  // Each warp writes its sums to the memory of its ring.
  wait_async_copies<0>();
  __syncwarp();
  store_sums(reinterpret_cast<float*>(shared + warp * Ring::kWarpBytes), acc);
  __syncthreads();
#pragma unroll
  for (int i = 0; i < kOutputs; ++i) {
    const int at = threadIdx.x + i * kQuantizedThreads, token = at / kBlockColumns;
    const int column_of_block = at % kBlockColumns;
    float y = 0, up = 0;
    if (is_output(at)) {
      const float* from = reinterpret_cast<const float*>(shared) +
                          (column_of_block / kColumns * kTokenTiles * 8 + token) * kSumPitch +
                          column_of_block % kColumns;
#pragma unroll
      for (int w = 0; w < kQuantizedWarps; ++w) {
        y += from[0];
        if constexpr (kTile == QuantizedTile::kSwiglu) up += from[8];
        from += Ring::kWarpBytes / 4;
      }
    }
    if constexpr (kTile == QuantizedTile::kSwiglu) {
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
          if (column_of_block == 0) params.norm.squares[blockIdx.x * kNormTokens + token] = squares;
        }
      }
    } else if (is_output(at)) {
      y *= factors[token];
      if (p.bias != nullptr) y += p.bias[first_column + column_of_block];
      if (p.float_out) static_cast<float*>(p.out)[out_at(at) - static_cast<T*>(p.out)] = y;
      else *out_at(at) = from_float<T>(y);
    }
  }
}

// -- launcher

template <class Format, QuantizedTile kTile, int kMaxTokens, int kTiles>
void launch_quantized_small(Launch where, const QuantizedSmall& params) {
  constexpr auto kernel = quantized_small_kernel<Format, kTile, kMaxTokens, kTiles>;
  constexpr int kBlockColumns = kTiles * (kTile == QuantizedTile::kWhole ? 16 : 8);
  // A DeferredNorm has a part for each thread block.
  static_assert(kTile == QuantizedTile::kSwiglu || kBlockColumns <= 32);
  allow_shared_memory<kernel>();
  launch(where, kernel, blocks_for(params.args.n, kBlockColumns), kQuantizedThreads,
         size_t{kQuantizedWarps} * QuantizedRing<Format, kMaxTokens, kTiles>::kWarpBytes +
             kMaxTokens * sizeof(float),
         params);
}

template <class Format>
void run_quantized_small(Launch where, const QuantizedSmall& params, int tiles) {
  const GemmArgs& args = params.args;
  const auto run = [&]<int kMaxTokens>() {
    constexpr int kSwigluTiles = Format::kPieces == 1 ? 3 : 2;
    if (args.epilogue == Epilogue::kSwiglu)
      launch_quantized_small<Format, QuantizedTile::kSwiglu, kMaxTokens, kSwigluTiles>(where,
                                                                                       params);
    else if (tiles == 1)
      launch_quantized_small<Format, QuantizedTile::kWhole, kMaxTokens, 1>(where, params);
    else launch_quantized_small<Format, QuantizedTile::kWhole, kMaxTokens, 2>(where, params);
  };
  if constexpr (Format::kPieces == 1)  // int4
    if (args.num_tokens == 1) return run.template operator()<1>();
  if (args.num_tokens <= 4) run.template operator()<4>();
  else if (args.num_tokens <= 8) run.template operator()<8>();
  else run.template operator()<16>();
}

}  // namespace nanovllm::cuda
