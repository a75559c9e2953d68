#pragma once

#include "nanovllm/ops/cuda/gemm/quantized/hopper/dequantizer.cuh"
#include "nanovllm/ops/cuda/gemm/swap_ab_block.cuh"

// Quantized weights in the thread block of swap_ab_gemm.cu. They are wgmma's operand A, which may
// come from registers. So a consumer converts the values that its own lanes need, while the tensor
// cores multiply those before, and no 16-bit weights are written to shared memory and read again:
// that would take longer than reading w from memory.
namespace nanovllm::cuda::swap_ab {

struct QuantizedParams : Params {
  RawWeight raw;  // instead of w
};

template <class Format>
struct RawWeights {
  using Params = QuantizedParams;
  using Stage = RawStage<Format>;
  using Operands = uint32_t[4][4];  // A of the four matrix instructions of 64 columns
  static constexpr bool kQuantized = true;
  static constexpr int kChunk = kQuantizedChunk, kResident = 2, kBoxes = 2;
  static __host__ __device__ int bytes(int rows) { return Stage::bytes(rows, kBoxes); }

  static Params with_weight(const swap_ab::Params& p) {
    return {p, Stage::params(*p.args.quantized, p.rows / kBoxes)};
  }

  const Params& p;
  __device__ uint32_t copied_bytes() const { return Stage::copied_bytes(p.raw, p.rows, kBoxes); }
  __device__ void copy(uint32_t stage, int half, int chunk, int row, uint32_t barrier) const {
    Stage::copy(p.raw, stage, p.rows, kBoxes, half, chunk, row, barrier);
  }

  /// A lane has two rows, eight apart. Of 16 columns it needs four pairs: the columns 2 lane % 4
  /// and the next, and those 8 further on, of both rows.
  struct Lane {
    int row, scales[2];  // Stage::scale() of both rows
  };
  template <class Block>
  __device__ Lane lane_of(const Block& block, int thread) const {
    Lane lane = {.row = thread / 32 * 16 + thread % 32 / 4};
    const int box = lane.row / (p.rows / 2), first = block.first_row(box);
#pragma unroll
    for (int i = 0; i < 2; ++i)
      lane.scales[i] = Stage::scale(p.raw.weight, p.rows, kBoxes, lane.row + 8 * i, box, first);
    return lane;
  }

  /// The scaled values of 64 columns of chunk `chunk` of k.
  template <int kHalf>
  __device__ __forceinline__ void load(Operands& a, uint32_t stage, const Lane& lane,
                                       int chunk) const {
    const int chunk_offset = Stage::chunk_offset(p.raw.weight, chunk);
    const int quad = threadIdx.x % 4;
    const int next = Format::kFine ? Stage::next_group(p.raw.weight, p.rows / 2) : 0;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int row = lane.row + 8 * i;
      const uint32_t scale_at = stage + lane.scales[i] + chunk_offset + kHalf * 2 * next;
      RowScale<Format> factor(p.raw.weight, load_shared_word(scale_at));
      if constexpr (Format::kInOrder) {
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          const uint32_t from = stage + Stage::piece(row, kHalf * 4 + j) + quad * 2;
#pragma unroll
          for (int pair = 0; pair < 2; ++pair)
            a[j][pair * 2 + i] = factor.convert_pair(load_shared_half(from + pair * 8));
        }
        continue;
      }
      uint4 piece;
      if constexpr (Format::kPieces == 1) {
        const uint2 groups = load_shared8(stage + Stage::piece(row, quad) + kHalf * 8);
        piece = {groups.x, groups.y, 0, 0};
      } else {
        piece = load_shared(stage + Stage::piece(row, kHalf * 4 + quad));
      }
#pragma unroll
      for (int group = 0; group < 2; ++group) {
        if (group == 1 && next != 0)
          factor = RowScale<Format>(p.raw.weight, load_shared_word(scale_at + next));
        uint32_t pairs[4];
        factor.convert(piece, group, pairs);
#pragma unroll
        for (int j = 0; j < 4; ++j) a[group * 2 + j / 2][j % 2 * 2 + i] = pairs[j];
      }
    }
  }

  /// Block::multiply().
  template <int kTokens>
  __device__ __forceinline__ void multiply(const Block<kTokens, RawWeights>& block,
                                           int thread) const {
    float sums[kTokens / 2];
    Operands first, second;  // the halves of a chunk
    const Lane lane = lane_of(block, thread);
    const auto stage_at = [&](int stage) { return block.shared + block.layout.w(stage); };
    const auto multiply_half = [&](const Operands& a, int stage, int half, bool adds) {
      const uint32_t x = block.shared + block.layout.x(stage) + half * kTokens * kBoxRowBytes;
      wgmma_fence();
#pragma unroll
      for (int i = 0; i < 4; ++i)
        Wgmma<Bf16, kTokens>::rs_k_major(sums, a[i], tile_descriptor(x + i * 32, 1024, 0),
                                         adds || i > 0);
      wgmma_commit();
    };
    barrier_wait(block.barrier(kWFull, 0), 0);
    load<0>(first, stage_at(0), lane, block.first_chunk);
    block.for_chunks([&](int chunk, int stage, uint32_t parity) {
      barrier_wait(block.barrier(kXFull, stage), parity);
      multiply_half(first, stage, 0, chunk > 0);
      load<1>(second, stage_at(stage), lane, block.first_chunk + chunk);
      wgmma_wait<0>();
      multiply_half(second, stage, 1, true);
      if (chunk + 1 < block.num_chunks) {
        const bool wraps = stage + 1 == p.stages;
        const int next = wraps ? 0 : stage + 1;
        barrier_wait(block.barrier(kWFull, next), wraps ? parity ^ 1 : parity);
        load<0>(first, stage_at(next), lane, block.first_chunk + chunk + 1);
      }
      wgmma_wait<0>();
      if (chunk + p.stages < block.num_chunks && thread % 32 == 0)
        barrier_arrive(block.barrier(kEmpty, stage));
    });
    pin(sums);
    block.store_sums(sums, thread);
  }
};

}  // namespace nanovllm::cuda::swap_ab
