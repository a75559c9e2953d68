#pragma once

#include "nanovllm/ops/cuda/gemm/hopper/swap_ab_block.cuh"
#include "nanovllm/ops/cuda/gemm/quantized/hopper/dequantizer.cuh"

// Quantized weights in the thread block of swap_ab_gemm.cu. They are wgmma's operand A, which may
// come from registers. So a consumer converts the values that its own lanes need. Writing 16-bit
// weights to shared memory and reading them again would take longer than reading w from memory.
// Values are exact in bfloat16; their scales multiply the sums of their columns of k.
//
// Converting takes most of the time, and few warps on each of a multiprocessor's schedulers wait
// too often. So there may be more warpgroups than the rows need; then each multiplies only some of
// the chunks of k.
namespace nanovllm::cuda::swap_ab {

struct QuantizedParams : Params {
  RawWeight raw;  // instead of w
  // The scales of a quantized x (e4m3_swap_ab.cu), one chunk of k after the other, x_scale_stride
  // floats apart.
  const float* x_scales = nullptr;
  int x_scale_stride = 0, x_scale_bytes = 0;
};

/// The share of a warpgroup: 64 of the thread block's rows. If several warpgroups have the same
/// rows, they take the chunks of k in turn: this one `first`, then every `step`th.
struct Share {
  int first_row, first, step;
  template <class Block>
  __device__ Share(const Block& block, int thread) {
    // All lanes have the same group; so the compiler computes with one value for a warp.
    const int group = __shfl_sync(kAllLanes, thread / 128, 0), row_groups = block.p.rows / 64;
    first_row = group % row_groups * 64;
    first = group / row_groups;
    step = block.p.consumers / (128 * row_groups);
  }
  /// Calls body(chunk, stage, parity) for each chunk of the share, as Block::for_chunks() does. The
  /// ring has at least `step` stages, or all chunks.
  template <class Block, class Body>
  __device__ __forceinline__ void for_chunks(const Block& block, Body body) const {
    int stage = first;
    uint32_t parity = 0;
    for (int chunk = first; chunk < block.num_chunks; chunk += step, stage += step) {
      for (; stage >= block.p.stages; stage -= block.p.stages) parity ^= 1;
      body(chunk, stage, parity);
    }
  }
};

template <class Format>
struct RawOperands {
  using Params = QuantizedParams;
  using Stage = RawStage<Format>;
  static constexpr bool kQuantized = true;
  static constexpr int kReaders = 1;
  static constexpr int kChunk = kQuantizedChunk, kBoxes = 2;
  static constexpr int kMostThreads = 4 * 128 + 32, kResident = 1;
  static __host__ __device__ int bytes(int rows) { return Stage::bytes(rows, kBoxes); }
  static __host__ __device__ int x_bytes(int tokens) { return tokens * kChunk * 2; }

  static Params with_operands(swap_ab::Params p, int tokens) {
    p.x = tensor_map(p.args.x, p.args.num_tokens, p.args.k, tokens);
    return {p, Stage::params(*p.args.quantized, p.rows / kBoxes)};
  }

  const Params& p;
  __device__ uint32_t copied_bytes() const { return Stage::copied_bytes(p.raw, p.rows, kBoxes); }
  __device__ void copy(uint32_t stage, int half, int chunk, int row, uint32_t barrier) const {
    Stage::copy(p.raw, stage, p.rows, kBoxes, half, chunk, row, barrier);
  }

  template <int kTokens>
  __device__ uint32_t copied_x_bytes() const {
    return kTokens * kChunk * 2;
  }
  template <int kTokens>
  __device__ void copy_x(uint32_t stage, int chunk, uint32_t barrier) const {
#pragma unroll
    for (int box = 0; box < kChunk / kBoxColumns; ++box)
      box_copy(stage + box * kTokens * kBoxRowBytes, p.x, chunk * kChunk + box * kBoxColumns, 0,
               barrier);
  }

  /// A lane converts rows `row` and `row` + 8 of the thread block's rows.
  struct Lane {
    int row, scales[2];  // the offsets of both rows' scales, from Stage::scale()
  };
  template <class Block>
  __device__ Lane lane_of(const Block& block, int row) const {
    Lane lane = {.row = row};
    const int box = row / (p.rows / 2), first = block.first_row(box);
#pragma unroll
    for (int i = 0; i < 2; ++i)
      lane.scales[i] = Stage::scale(p.raw.weight, p.rows, kBoxes, row + 8 * i, box, first);
    return lane;
  }

  /// Loads operand A of the matrix instructions [first, first + kCount) of a stage, of 16 columns
  /// each. A lane has four pairs of these: in both rows, columns 2 (lane % 4) and the next, and the
  /// two that are 8 further on. `zero` has the zero points of both rows.
  template <int kCount>
  __device__ __forceinline__ void load(uint32_t (&a)[kCount][4], uint32_t stage, const Lane& lane,
                                       int first, const uint32_t (&zero)[2]) const {
    const int quad = threadIdx.x % 4, half = first / 4;  // which half of the stage's columns
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int row = lane.row + 8 * i;
      if constexpr (Format::kInOrder) {
        // The two rows have the same swizzle, and rows begin at multiples of 128 bytes.
        const uint32_t first_piece = stage + Stage::piece(lane.row, 0) + quad * 2;
#pragma unroll
        for (int j = 0; j < kCount; ++j) {
          const uint32_t from = (first_piece ^ (first + j) * 16) + 8 * i * Stage::kRowBytes;
#pragma unroll
          for (int pair = 0; pair < 2; ++pair)
            a[j][pair * 2 + i] = Format::first_pair(load_shared_half(from + pair * 8));
        }
      } else {
        uint4 piece;
        if constexpr (Format::kPieces == 1) {
          const uint2 groups = load_shared8(stage + Stage::piece(row, quad) + half * 8);
          piece = {groups.x, groups.y, 0, 0};
        } else {
          piece = load_shared(stage + Stage::piece(row, half * 4 + quad));
        }
#pragma unroll
        for (int j = 0; j < kCount; j += 2) {
          uint32_t pairs[4];
          Format::unpack(piece, (first + j) / 2 % 2, zero[i], pairs);
#pragma unroll
          for (int pair = 0; pair < 4; ++pair) a[j + pair / 2][pair % 2 * 2 + i] = pairs[pair];
        }
      }
    }
  }

  /// Does the work of Block::multiply().
  template <int kTokens>
  __device__ __forceinline__ void multiply(const Block<kTokens, RawOperands>& block,
                                           int thread) const {
    float sums[kTokens / 2] = {};
    if (Format::kFine && p.raw.weight.group_shift == 5) add_chunks<true>(sums, block, thread);
    else add_chunks<false>(sums, block, thread);
    block.store_sums(sums, thread);
  }

  /// Multiplies all chunks of the share. With kFineGroups each 32 columns have their own scale.
  /// Until the end, the sums of a row are divided by the scale of the last group of columns, so
  /// that the tensor cores can add to them.
  template <bool kFineGroups, int kTokens>
  __device__ __forceinline__ void add_chunks(float (&sums)[kTokens / 2],
                                             const Block<kTokens, RawOperands>& block,
                                             int thread) const {
    constexpr int kParts = kFineGroups ? 4 : 2, kCount = 8 / kParts;  // instructions of a part
    const Share share(block, thread);
    const Lane lane = lane_of(block, share.first_row + thread % 128 / 32 * 16 + thread % 32 / 4);
    float scale[2] = {1, 1};
    uint32_t zero[2] = {}, read = 0;  // the barrier of the stage before, if it is needed again
    const auto multiply_sums = [&](const float(&factor)[2]) {
      wgmma_wait<0>();
      pin(sums);
#pragma unroll
      for (int i = 0; i < kTokens / 2; ++i) sums[i] *= factor[i / 2 % 2];
    };
    share.for_chunks(block, [&](int chunk, int stage, uint32_t parity) {
      const uint32_t w = block.shared + block.layout.w(stage);
      const uint64_t x = tile_descriptor(block.shared + block.layout.x(stage), 1024, 0);
      barrier_wait(block.barrier(kWFull, stage), parity);
#pragma unroll
      for (int part = 0; part < kParts; ++part) {
        const bool has_scales = kFineGroups || part == 0;
        float factor[2];
#pragma unroll
        for (int i = 0; i < 2 && has_scales; ++i) {
          const uint32_t word =
              load_shared_word(w + Stage::chunk_offset(p.raw.weight, block.first_chunk + chunk) +
                               lane.scales[i] + part * (p.rows / kBoxes) * 4);
          zero[i] = Format::zero(word);
          const float next = divisor(Format::scale(p.raw.weight, word));
          factor[i] = quotient(scale[i], next);
          scale[i] = next;
        }
        // The matrix instructions that were started last may still read the operands of their part.
        uint32_t a[kCount][4];
        wgmma_wait<1>();
        load(a, w, lane, part * kCount, zero);
        if (has_scales) multiply_sums(factor);
        if (part == 0) {
          if (read != 0) barrier_arrive(read);
          barrier_wait(block.barrier(kXFull, stage), parity);
        }
        wgmma_fence();
#pragma unroll
        for (int i = 0; i < kCount; ++i) {
          constexpr int kPerBox = kBoxColumns / 16;
          const int at = part * kCount + i;
          Wgmma<Bf16, kTokens>::rs_k_major(
              sums, a[i],
              descriptor_at(x, at / kPerBox * kTokens * kBoxRowBytes + at % kPerBox * 32), 1);
        }
        wgmma_commit();
      }
      const bool is_needed = chunk + p.stages < block.num_chunks && thread % 32 == 0;
      read = is_needed ? block.barrier(kEmpty, stage) : 0;
    });
    multiply_sums(scale);
  }
  /// A scale by which sums can be divided. Zero becomes so small a number that its columns do not
  /// count.
  static __device__ __forceinline__ float divisor(float scale) {
    constexpr float kLeast = 0x1p-80f;
    return fabsf(scale) < kLeast ? kLeast : scale;
  }
  static __device__ __forceinline__ float quotient(float x, float y) {
    float q;
    asm("div.approx.ftz.f32 %0, %1, %2;" : "=f"(q) : "f"(x), "f"(y));
    return q;
  }
};

}  // namespace nanovllm::cuda::swap_ab
