#pragma once

#include "nanovllm/ops/cuda/device/e4m3.cuh"
#include "nanovllm/ops/cuda/gemm/quantized/hopper/raw_stage.cuh"

// The conversion of quantized values to bfloat16 on Hopper. RowScale applies a scale to the values
// while they are converted, so that the tensor cores can add the products of all groups; each
// weight is rounded once. DequantizedRow converts a row of a stage for wgmma.
namespace nanovllm::cuda {

[[maybe_unused]] __device__ __forceinline__ uint32_t load_shared_half(uint32_t from) {
  uint32_t x;
  asm volatile("{\n.reg .b16 x;\nld.shared.u16 x, [%1];\ncvt.u32.u16 %0, x;\n}"
               : "=r"(x)
               : "r"(from)
               : "memory");
  return x;
}
[[maybe_unused]] __device__ __forceinline__ uint2 load_shared8(uint32_t from) {
  uint2 v;
  asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "r"(from) : "memory");
  return v;
}

/// The scale of a row and a group, and its zero point. Integers are exact in bfloat16. Their scale
/// is the sum of two bfloat16, which together have its bits even if it is a float16, so a product
/// is rounded once, by the instruction that adds both parts of it.
template <class Format>
struct RowScale {
  uint32_t zero, high, low;

  __device__ __forceinline__ RowScale(const QuantizedWeight& w, uint32_t scale_word)
      : zero(Format::zero(scale_word)) {
    const float scale = Format::scale(w, scale_word);
    high = pack<Bf16>(scale, scale);
    const float rest = scale - bits_as<float>(high & 0xffff0000);
    low = pack<Bf16>(rest, rest);
  }
  /// The scaled pairs of a group (weight_formats.cuh).
  __device__ __forceinline__ void convert(const uint4& piece, int group,
                                          uint32_t (&pairs)[4]) const {
    Format::unpack(piece, group, zero, pairs);
#pragma unroll
    for (uint32_t& pair : pairs) {
      const auto value = bits_as<__nv_bfloat162>(pair);
      const __nv_bfloat162 rest = __hmul2(value, bits_as<__nv_bfloat162>(low));
      pair = bits_as<uint32_t>(__hfma2(value, bits_as<__nv_bfloat162>(high), rest));
    }
  }
};

/// E4M3 is scaled in float32, since its scales are floats of any size.
template <>
struct RowScale<E4M3Format<Bf16>> {
  float scale;

  __device__ __forceinline__ RowScale(const QuantizedWeight&, uint32_t scale_word)
      : scale(bits_as<float>(scale_word)) {}
  __device__ __forceinline__ uint32_t scaled(uint32_t halfs) const {
    const float2 two = __half22float2(bits_as<__half2>(halfs));
    return pack<Bf16>(two.x * scale, two.y * scale);
  }
  __device__ __forceinline__ void convert(const uint4& piece, int group,
                                          uint32_t (&pairs)[4]) const {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      uint32_t low, high;
      e4m3_to_halfs(word(piece, group % 2 * 2 + i), low, high);
      pairs[2 * i] = scaled(low), pairs[2 * i + 1] = scaled(high);
    }
  }
};

/// One row of a stage. A thread converts 64 columns of it, which are a row of 128 bytes in the
/// layout of wgmma's descriptors (wgmma.cuh: tile_descriptor()). If the lanes of a warp have
/// neighbouring rows, none of the accesses has bank conflicts, except that eight bytes of four-bit
/// values take the time of 16.
template <class Format>
struct DequantizedRow {
  using Stage = RawStage<Format>;
  int row;
  int scale;  // offset of the row's first scale, from Stage::scale()

  /// Converts half `half` of the columns of the stage at `stage` into the matrix whose first row is
  /// at `to`.
  __device__ __forceinline__ void convert(const RawWeight& w, uint32_t stage, int box_rows,
                                          int half, uint32_t to) const {
    uint4 pieces[4];  // weight_formats.cuh gives piece i to lane i; this thread has them all
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if constexpr (Format::kPieces == 1) {
        const uint2 groups = load_shared8(stage + Stage::piece(row, i) + half * 8);
        pieces[i] = {groups.x, groups.y, 0, 0};
      } else {
        pieces[i] = load_shared(stage + Stage::piece(row, half * 4 + i));
      }
    }
    const int next = Format::kFine ? Stage::next_group(w.weight, box_rows) : 0;
    const uint32_t scale_at = stage + scale + half * 2 * next;
    RowScale<Format> factor(w.weight, load_shared_word(scale_at));
#pragma unroll
    for (int group = 0; group < 2; ++group) {
      if (group == 1 && next != 0)
        factor = RowScale<Format>(w.weight, load_shared_word(scale_at + next));
      uint32_t pairs[4][4];  // [piece, pair]
#pragma unroll
      for (int i = 0; i < 4; ++i) factor.convert(pieces[i], group, pairs[i]);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        // Eight neighbouring columns are 16 bytes.
        const int eight = Format::kInOrder ? i * 2 + group : group * 4 + i;
        const uint4 columns = Format::kInOrder
                                  ? uint4{pairs[i][0], pairs[i][1], pairs[i][2], pairs[i][3]}
                                  : uint4{pairs[0][i], pairs[1][i], pairs[2][i], pairs[3][i]};
        store_shared(to + row * kBoxRowBytes + (eight ^ row % 8) * 16, columns);
      }
    }
  }
};

}  // namespace nanovllm::cuda
